"""Sees an engine die within milliseconds: the robust mutex it holds first, its pidfd behind that.

Whichever sensor speaks first is told, with what is known of the exit by then.
"""

import asyncio
import os
import signal
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import structlog

from engines import lifeline
from node.processes import Identity, alive

_JOIN_S = 2.0

log = structlog.get_logger()


class DeathWatch:
    """Watches one process; `on_death(evidence)` is called once, in the event loop that made this."""

    def __init__(
        self,
        identity: Identity,
        lifeline_path: Path | None,
        child: "subprocess.Popen[bytes] | None",
        on_death: Callable[[str], None],
    ) -> None:
        self._identity = identity
        self._child = child
        self._on_death = on_death
        self._loop = asyncio.get_running_loop()
        self._dead = False
        self._closed = False
        self._stop = threading.Event()
        self._pidfd = self._watch_pidfd()
        self._thread = self._watch_lifeline(lifeline_path)

    async def close(self) -> None:
        """Stop watching."""
        self._closed = True
        self._stop.set()
        self._close_pidfd()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join, _JOIN_S)

    def _watch_pidfd(self) -> int:
        try:
            fd = os.pidfd_open(self._identity.pid)
        except OSError:
            self._loop.call_soon(self._died, "pidfd: no such process")
            return -1
        self._loop.add_reader(fd, self._exited)
        if not alive(self._identity):
            self._loop.call_soon(self._died, "process table: ended")
        return fd

    def _watch_lifeline(self, path: Path | None) -> threading.Thread | None:
        if path is None:
            return None
        thread = threading.Thread(target=self._wait, args=(path,), name="lifeline", daemon=True)
        thread.start()
        return thread

    def _wait(self, path: Path) -> None:
        try:
            fate = lifeline.wait_for_death(path, self._stop)
        except OSError as error:
            log.warning("lifeline.lost", path=str(path), error=str(error))
            return
        if fate is lifeline.Fate.DIED and not self._stop.is_set():
            self._loop.call_soon_threadsafe(self._died, "robust mutex: owner died")

    def _exited(self) -> None:
        self._close_pidfd()
        self._died("pidfd: process ended")

    def _died(self, sensor: str) -> None:
        if self._closed:
            return
        how = exit_text(self._child)
        evidence = f"{sensor}; pid {self._identity.pid}" + (f" {how}" if how else "")
        if self._dead:
            log.debug("engine.exit", evidence=evidence)
            return
        self._dead = True
        self._on_death(evidence)

    def _close_pidfd(self) -> None:
        if self._pidfd >= 0:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1


def exit_text(child: "subprocess.Popen[bytes] | None") -> str:
    """Say how a child ended, reaping it; empty while it runs and for processes that are not children."""
    code = None if child is None else child.poll()
    if code is None:
        return ""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {-code} ({signal.Signals(-code).name})"
    except ValueError:
        return f"signal {-code}"
