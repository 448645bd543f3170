"""Run by every Python process of a launched engine at its start: it holds a lifeline, and says nothing if it cannot.

The launcher puts this folder first in the engine's PYTHONPATH; the environment's own sitecustomize runs afterwards.
"""

import os
import sys

_VARIABLE = "UNBROKEN_LIFELINES"
"""Names the folder of this engine's lifelines."""


def _hold() -> None:
    folder = os.environ.get(_VARIABLE)
    if not folder:
        return
    try:
        from importlib.util import module_from_spec, spec_from_file_location
        from pathlib import Path

        # By its file: the engine's environment may know nothing of this package, or have another `engines`.
        file = Path(__file__).resolve().parent.parent / "lifeline.py"
        spec = spec_from_file_location("_unbroken_lifeline", file)
        if spec is None or spec.loader is None:
            return
        lifeline = module_from_spec(spec)
        spec.loader.exec_module(lifeline)
        sys.modules[spec.name] = lifeline
        lifeline.hold_own(Path(folder))
    except Exception:  # noqa: BLE001, S110 - an engine must never fail for being watched
        pass


def _go_on() -> None:
    """Run the sitecustomize this one stands before. Its errors are its own."""
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    here = os.path.realpath(os.path.dirname(__file__))  # noqa: PTH120 - as light as a start of Python should be
    spec = PathFinder.find_spec("sitecustomize", [path for path in sys.path if os.path.realpath(path) != here])
    if spec is not None and spec.loader is not None:
        module = module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


_hold()
_go_on()
