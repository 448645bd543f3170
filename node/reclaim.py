"""Ends an old engine's whole process tree and proves it gone (design, section 6).

Only what this agent launched is signalled: the recorded process with its start time, its group and
descendants, and whatever carries this agent's mark.
"""

import asyncio
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass

from node import mark, processes
from node.processes import Identity
from node.state import Record

_POLL_S = 0.01
_AFTER_KILL_S = 1.0
"""Time given to KILL before the process table is read anew and the signal repeated."""


@dataclass(frozen=True, slots=True)
class Ended:
    """What became of a tree."""

    pids: tuple[int, ...]
    left: tuple[int, ...]
    """Pids that would not die in time."""


def find(record: Record | None, wanted: Callable[[mark.Mark], bool]) -> set[Identity]:
    """Return the living processes of a recorded engine, and the marked ones that are `wanted`."""
    found = processes.tree(record.identity) if record else set()
    return found | set(mark.find(wanted))


async def end_all(
    search: Callable[[], set[Identity]],
    child: "subprocess.Popen[bytes] | None",
    grace_s: float,
    deadline_s: float,
) -> Ended:
    """TERM, grace, KILL whatever `search` finds, until it finds nothing or the deadline passes.

    `grace_s` 0 kills at once; a stopped process gets no TERM, which it would ignore. The child, if any, is reaped.
    """
    deadline = time.monotonic() + deadline_s
    seen: set[Identity] = set()
    targets = await asyncio.to_thread(search)
    if grace_s > 0 and targets:
        seen |= targets
        for target in targets:
            if not processes.stopped(target):
                processes.send(target, signal.SIGTERM)
        moving = {target for target in targets if not processes.stopped(target)}
        await _gone(moving, min(deadline, time.monotonic() + grace_s))
        targets = await asyncio.to_thread(search)
    while targets:
        seen |= targets
        for target in targets:
            processes.send(target, signal.SIGKILL)
        await _gone(targets, min(deadline, time.monotonic() + _AFTER_KILL_S))
        targets = await asyncio.to_thread(search)
        if time.monotonic() >= deadline:
            break
    left = {target.pid for target in targets}
    if child is not None and not await _reaped(child, deadline):
        left.add(child.pid)
    return Ended(tuple(sorted({one.pid for one in seen} - left)), tuple(sorted(left)))


async def _gone(targets: set[Identity], deadline: float) -> None:
    while any(processes.alive(one) for one in targets) and time.monotonic() < deadline:  # noqa: ASYNC110 - no event
        await asyncio.sleep(_POLL_S)


async def _reaped(child: "subprocess.Popen[bytes]", deadline: float) -> bool:
    while child.poll() is None:
        if time.monotonic() >= deadline:
            return False
        await asyncio.sleep(_POLL_S)
    return True
