"""One process of an engine under watch: the lifeline it holds, its pidfd, and a look at the process table.

The look decides: the other two only say when to look. A program that calls exec lets go of its lifeline and lives on.
"""

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable
from pathlib import Path

import structlog

from engines import lifeline
from node import processes
from node.processes import Identity

_JOIN_S = 2.0

log = structlog.get_logger()


class Member:
    """Watches one process; `alarm(member, sensor)` is called in the event loop that made this, maybe repeatedly."""

    def __init__(self, identity: Identity, alarm: Callable[["Member", str], None], counts_from: float = 0.0) -> None:
        """Begin to watch. Raises ProcessLookupError when the process is gone already, OSError without descriptors."""
        self.identity = identity
        self.counts_from = counts_from
        """Monotonic time before which its end is no news."""
        self.halted = False
        self._alarm = alarm
        self._loop = asyncio.get_running_loop()
        self._stop = threading.Event()
        self._let_go = False
        self._pidfd = -1
        # Held open: what it says is of this very process for ever, whoever has the pid later.
        self._stat = _open(identity.pid)
        try:
            self.name = self._name()
        except BaseException:
            os.close(self._stat)
            raise
        self._thread: threading.Thread | None = None
        self._watch_pidfd()

    def watch_lifeline(self, folder: Path) -> None:
        """Wait for the lifeline this process holds in `folder`, if it does: a program in another language has none."""
        path = folder / str(self.identity.pid)
        if self._thread is None and path.exists():
            self._thread = threading.Thread(target=self._wait, args=(path,), name=f"lifeline {path.name}", daemon=True)
            self._thread.start()

    def look(self) -> str:
        """Say how it ended, empty while it lives; costs about 4 µs."""
        try:
            stat = self._read()
        except OSError:  # no memory for an answer, say
            return ""
        if stat is None:
            return "process table: gone"
        self.halted = stat.stopped
        # Other threads may outlive the first one: then the process has not ended.
        if not stat.ending or not processes.ending(self.identity.pid):
            return ""
        if self._let_go:
            return "robust mutex: owner died"
        return "process table: ending" if stat.living else "process table: zombie"

    def stop(self) -> None:
        """Let go of every sensor but the lifeline's thread, which `join` waits for."""
        self._stop.set()
        self._drop_pidfd()
        if self._stat >= 0:
            os.close(self._stat)
            self._stat = -1

    def join(self) -> None:
        """Wait for the lifeline's thread to end; blocks for 0.2 s or so after `stop`."""
        if self._thread is not None:
            self._thread.join(_JOIN_S)

    def _name(self) -> str:
        stat = self._read()
        if stat is None or stat.started != self.identity.started:
            raise ProcessLookupError(f"pid {self.identity.pid} is gone, or another process now")
        return stat.name

    def _read(self) -> processes.Stat | None:
        """Return its stat, None once it is gone. Raises OSError when that cannot be said."""
        try:
            return processes.parse(os.pread(self._stat, 1024, 0))
        except ProcessLookupError:
            return None

    def _watch_pidfd(self) -> None:
        try:
            self._pidfd = os.pidfd_open(self.identity.pid)
        except OSError as error:  # no descriptors left, or an old kernel: the table tells
            log.debug("pidfd.unusable", pid=self.identity.pid, error=str(error))
            return
        self._loop.add_reader(self._pidfd, self._exited)

    def _exited(self) -> None:
        self._drop_pidfd()
        self._alarm(self, "pidfd: process ended")

    def _drop_pidfd(self) -> None:
        if self._pidfd >= 0:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1

    def _wait(self, path: Path) -> None:
        try:
            fate = lifeline.wait_for_death(path, self._stop)
        except OSError as error:
            log.warning("lifeline.lost", path=str(path), error=str(error))
            return
        if fate is lifeline.Fate.DIED and not self._stop.is_set():
            self._loop.call_soon_threadsafe(self._broke)

    def _broke(self) -> None:
        with contextlib.suppress(OSError):
            stat = None if self._stop.is_set() else self._read()
            # Not so if it ended meanwhile, which the others tell, or called exec.
            self._let_go = stat is not None and stat.ending
        seen = self.look() if self._let_go else ""
        if seen:
            self._alarm(self, seen)


def _open(pid: int) -> int:
    try:
        return os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise ProcessLookupError(f"no process has the pid {pid}") from error
