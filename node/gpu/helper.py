"""`python -m node.gpu.helper`: the process that may hang in the driver instead of the agent.

Reads questions from stdin, writes answers and Xids to stdout, one JSON object a line; ends with its stdin.
"""

import importlib
import json
import os
import sys
import threading
from typing import Any

from node.gpu.reader import Reader
from node.gpu.reading import Reading
from node.gpu.xid_events import XidListener

MODULE_VARIABLE = "NVML_MODULE"
"""Names the module used instead of `pynvml`; for tests."""


def main() -> int:
    """Answer until stdin ends."""
    out = _Out()
    reader, problem = _reader(out)
    for line in sys.stdin.buffer:
        question = json.loads(line)
        # From here on the driver has the word: its deadline begins now, however slowly this process was started.
        out.write({"begun": question["ask"]})
        reading = reader.read(question["wanted"]) if reader else Reading("none", problem)
        out.write({"answer": question["ask"], "reading": reading.dump()})
    # Not through the interpreter's end: a thread may be waiting in the driver.
    os._exit(0)


def _reader(out: "_Out") -> tuple[Reader | None, str]:
    name = os.environ.get(MODULE_VARIABLE, "pynvml")
    try:
        nvml: Any = importlib.import_module(name)
    except ImportError as error:
        return None, f"no NVML bindings: {error}"

    def tell(code: int, index: int, uuid: str, instance: int | None) -> None:
        out.write({"xid": {"code": code, "index": index, "uuid": uuid, "instance": instance}})

    return Reader(nvml, XidListener(nvml, tell).register), ""


class _Out:
    """The pipe to the agent; what the driver's library prints goes to stderr instead."""

    def __init__(self) -> None:
        self._fd = os.dup(1)
        os.dup2(2, 1)
        self._lock = threading.Lock()

    def write(self, message: dict[str, Any]) -> None:
        line = json.dumps(message).encode() + b"\n"
        with self._lock:
            while line:
                line = line[os.write(self._fd, line) :]


if __name__ == "__main__":
    sys.exit(main())
