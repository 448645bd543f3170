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
_ENDING = 0x4 | 0x200
"""Kernel flags of a thread that is on its way out (PF_EXITING) or dumps core (PF_DUMPCORE)."""
_KILLED = 1 << (signal.SIGKILL - 1)


@dataclass(frozen=True, slots=True)
class Identity:
    """One process, for all time: pid and start time in clock ticks since boot."""

    pid: int
    started: int


@dataclass(frozen=True, slots=True)
class Stat:
    """What /proc says of a process, or of one thread, now."""

    pid: int
    name: str
    state: str
    parent: int
    group: int
    session: int
    flags: int
    ticks: int
    """CPU time used, in clock ticks."""
    started: int
    pending: int
    """Signals on their way to this thread, as a bit mask."""

    @property
    def living(self) -> bool:
        """Whether it still runs: a zombie does not."""
        return self.state not in "ZXx"

    @property
    def stopped(self) -> bool:
        """Whether it is halted by a signal or a debugger."""
        return self.state in "Tt"

    @property
    def ending(self) -> bool:
        """Whether the thread this was read of will never run its program again.

        Seen as soon as a kill is sent, long before a big process's memory is freed and its pidfd and sockets tell.
        """
        return not self.living or bool(self.flags & _ENDING or self.pending & _KILLED)


def parse(text: bytes) -> Stat:
    """Read the content of a stat file."""
    # The name in brackets may itself hold brackets and spaces.
    head, _, tail = text.rpartition(b")")
    pid, _, name = head.partition(b" (")
    fields = tail.split()
    return Stat(
        pid=int(pid),
        name=name.decode("utf-8", "replace"),
        state=fields[0].decode("ascii"),
        parent=int(fields[1]),
        group=int(fields[2]),
        session=int(fields[3]),
        flags=int(fields[6]),
        ticks=int(fields[11]) + int(fields[12]),
        started=int(fields[19]),
        pending=int(fields[28]),
    )


def read(pid: int, thread: int = 0) -> Stat | None:
    """Return the stat of a process, or of one of its threads; None when there is none."""
    path = f"/proc/{pid}/task/{thread}/stat" if thread else f"/proc/{pid}/stat"
    try:
        return parse(Path(path).read_bytes())
    except OSError:
        return None


def threads(pid: int) -> list[int]:
    """Return the ids of a process's threads; none when it is gone."""
    try:
        return [int(name) for name in os.listdir(f"/proc/{pid}/task")]  # noqa: PTH208 - read 40 times a second
    except OSError:
        return []


def ending(pid: int) -> bool:
    """Whether no thread of a process will ever run again; a first thread that left its others behind is no end."""
    return all(stat is None or stat.ending for stat in (read(pid, thread) for thread in threads(pid)))


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
    return stat is not None and stat.started == identity.started and stat.stopped


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
    stats = {stat.pid: stat for stat in everything()}
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


def everything() -> Iterator[Stat]:
    """Yield the stat of every process there is, zombies included."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            stat = read(int(entry.name))
            if stat is not None:
                yield stat
