"""What /proc says of a process: its state, memory and CPU time."""

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path

from cli.faults import FaultFailed

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def state(pid: int) -> str:
    """Return R, S, D, T, Z or X (gone)."""
    fields = _stat(pid)
    return fields[0] if fields else "X"


def ended(pid: int) -> bool:
    """Whether it is gone, or dead and not yet reaped."""
    return state(pid) in "ZX"


def cpu_s(pid: int) -> float:
    """Return the CPU seconds it has used, 0 when it is gone."""
    fields = _stat(pid)
    return (int(fields[11]) + int(fields[12])) * _TICK_S if fields else 0.0


def resident_bytes(pid: int) -> int:
    """Return its resident memory (VmRSS), 0 when it is gone."""
    try:
        for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1_024
    except OSError:
        pass
    return 0


def children(pid: int) -> list[int]:
    """Return the pids of a process's children."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()]
    except OSError:
        return []


def family(root: int) -> list[int]:
    """Return a process's pid and those of all below it."""
    found, todo = [], [root]
    while todo:
        pid = todo.pop()
        found.append(pid)
        todo += children(pid)
    return found


async def until(condition: Callable[[], bool], what: str, timeout: float = 5.0) -> None:
    """Wait for a condition. Raises FaultFailed when it does not come about within `timeout` s."""
    end = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > end:
            raise FaultFailed(f"{what} did not come about within {timeout:g} s")
        await asyncio.sleep(0.002)


def _stat(pid: int) -> list[str]:
    try:
        # The state follows the command's name, which may itself hold brackets and spaces.
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return []
