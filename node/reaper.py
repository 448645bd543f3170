"""Takes orphans of our engines in and reaps them once they have died, so that no zombie is left (requirements D4).

Only members of trees we launched are waited for: never a child of `subprocess`, which would lose its exit code.
"""

import contextlib
import ctypes
import os
from collections.abc import Iterable

from node import processes
from node.processes import Identity

_PR_SET_CHILD_SUBREAPER = 36


class Reaper:
    """The orphans of one agent's engines."""

    def __init__(self) -> None:
        self._mains: set[int] = set()
        self._known: set[Identity] = set()

    def launched(self, pid: int) -> None:
        """Take note of an engine's main process, leader of its own session: it is waited for by whoever launched it."""
        self._mains.add(pid)

    def know(self, members: Iterable[Identity]) -> None:
        """Take note of processes of an engine's tree: they may have left its session."""
        self._known |= set(members)

    def reap(self) -> list[int]:
        """Reap the dead orphans that are ours; return their pids. Reads /proc."""
        reaped = []
        stats = {stat.pid: stat for stat in processes.everything()}
        for pid, stat in stats.items():
            ours = stat.session in self._mains or Identity(pid, stat.started) in self._known
            if stat.state == "Z" and stat.parent == os.getpid() and ours and pid not in self._mains:
                with contextlib.suppress(ChildProcessError):
                    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG)
                    reaped.append(pid)
        sessions = {stat.session for stat in stats.values()}
        self._mains &= sessions
        self._known = {one for one in self._known if one.pid in stats and stats[one.pid].started == one.started}
        return reaped


def become_subreaper() -> None:
    """Have orphans below this process become its children, not those of the system's first process (Linux)."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
