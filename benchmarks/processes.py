"""What /proc says of a process: its state, memory and CPU time."""

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path

from cli.faults import FaultFailed
from node.processes import read

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def state(pid: int) -> str:
    """Return R, S, D, T, Z or X (gone)."""
    stat = read(pid)
    return stat.state if stat else "X"


def ended(pid: int) -> bool:
    """Whether it is gone, or dead and not yet reaped."""
    return state(pid) in "ZX"


def cpu_s(pid: int) -> float:
    """Return the CPU seconds it has used, 0 when it is gone."""
    stat = read(pid)
    return stat.ticks * _TICK_S if stat else 0.0


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
