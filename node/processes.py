"""Processes by identity: a pid together with its start time, so that a recycled pid is never taken for ours.

Reads /proc; signals go through a pidfd opened before the identity is checked.
"""

import contextlib
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_LISTEN = "0A"
"""The state of a listening socket in /proc/net/tcp."""


@dataclass(frozen=True, slots=True)
class Identity:
    """One process, for all time: pid and start time in clock ticks since boot."""

    pid: int
    started: int


@dataclass(frozen=True, slots=True)
class Stat:
    """What /proc says of a process now."""

    pid: int
    state: str
    parent: int
    group: int
    started: int

    @property
    def living(self) -> bool:
        """Whether it still runs: a zombie does not."""
        return self.state not in "ZXx"


def read(pid: int) -> Stat | None:
    """Return a process's stat, None when there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The name in brackets may itself hold brackets and spaces.
    fields = text.rpartition(")")[2].split()
    return Stat(pid, fields[0], int(fields[1]), int(fields[2]), int(fields[19]))


def identify(pid: int) -> Identity | None:
    """Return the identity of the process that has `pid` now."""
    stat = read(pid)
    return None if stat is None else Identity(pid, stat.started)


def alive(identity: Identity) -> bool:
    """Whether this very process still runs."""
    stat = read(identity.pid)
    return stat is not None and stat.started == identity.started and stat.living


def stopped(identity: Identity) -> bool:
    """Whether it is halted (SIGSTOP, a debugger) and so would ignore TERM."""
    stat = read(identity.pid)
    return stat is not None and stat.started == identity.started and stat.state in "Tt"


def send(identity: Identity, number: signal.Signals) -> bool:
    """Signal this very process; False when it is gone or the pid belongs to another one now."""
    try:
        fd = os.pidfd_open(identity.pid)
    except OSError:
        return False
    try:
        # The descriptor pins the process: what is checked here is what gets the signal.
        if not alive(identity):
            return False
        signal.pidfd_send_signal(fd, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(fd)
    return True


def tree(root: Identity) -> set[Identity]:
    """Return the living processes of `root`'s group and all its descendants, itself included.

    Empty when the pid is another process's now: neither group nor children would be ours.
    """
    stats = {stat.pid: stat for stat in _all()}
    top = stats.get(root.pid)
    if top is None or top.started != root.started:
        return set()
    found = {root.pid} | {stat.pid for stat in stats.values() if stat.group == root.pid}
    while True:
        more = {stat.pid for stat in stats.values() if stat.parent in found} - found
        if not more:
            break
        found |= more
    return {Identity(pid, stats[pid].started) for pid in found if stats[pid].living and pid != os.getpid()}


def listens(root: Identity, port: int) -> bool:
    """Whether a process of `root`'s tree listens on TCP `port`: else whoever answers there is a stranger."""
    sockets = {f"socket:[{inode}]" for inode in _listeners(port)}
    for member in tree(root) if sockets else ():
        try:
            descriptors = list(Path(f"/proc/{member.pid}/fd").iterdir())
        except OSError:
            continue
        for descriptor in descriptors:
            with contextlib.suppress(OSError):
                if str(descriptor.readlink()) in sockets:
                    return True
    return False


def _listeners(port: int) -> Iterator[str]:
    """Yield the inodes of the sockets that listen on a port."""
    for table in ("tcp", "tcp6"):
        try:
            lines = Path(f"/proc/net/{table}").read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == _LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                yield fields[9]


def _all() -> Iterator[Stat]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            stat = read(int(entry.name))
            if stat is not None:
                yield stat
