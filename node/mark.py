"""The mark every engine process carries in its environment, so that orphans are known by node, epoch and launcher.

Children inherit it: whatever an engine forks is found even after its parents are gone.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from node.processes import Identity, read

VARIABLE = "UNBROKEN_EPOCH"


@dataclass(frozen=True, slots=True)
class Mark:
    """Who launched a process, for which node, under which epoch."""

    node: str
    epoch: int
    holder: str

    def __str__(self) -> str:
        """Return it as it stands in the environment."""
        return f"{self.node}:{self.epoch}:{self.holder}"


def parse(text: str) -> Mark | None:
    """Return the mark in `text`, or None when it is not one of ours."""
    parts = text.rsplit(":", 2)
    if len(parts) != 3 or not parts[0] or not parts[2] or not (parts[1].isascii() and parts[1].isdigit()):
        return None
    return Mark(parts[0], int(parts[1]), parts[2])


def of(pid: int) -> Mark | None:
    """Return the mark of a process; None without one, for other users' processes and for dead ones."""
    try:
        environ = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return None
    prefix = f"{VARIABLE}=".encode()
    for entry in environ.split(b"\0"):
        if entry.startswith(prefix):
            return parse(entry[len(prefix) :].decode("utf-8", "replace"))
    return None


def find(wanted: Callable[[Mark], bool]) -> Iterator[Identity]:
    """Yield the living processes whose mark is `wanted`, this one excepted."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        # The start time first: a pid recycled between the two reads then matches nothing.
        stat = read(int(entry.name))
        if stat is None or not stat.living:
            continue
        mark = of(stat.pid)
        if mark is not None and wanted(mark):
            yield Identity(stat.pid, stat.started)
