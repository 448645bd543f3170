"""Sees the death of any process an engine cannot live without, by whichever sensor speaks first (requirements D1).

Robust mutex, pidfd, and every few milliseconds the process table: a kill shows there before its victim has left.
"""

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import structlog

from node.member import Member
from node.processes import Identity

_POLL_S = 0.005
_SETTLED_S = 1.0
"""A process younger than this when the engine becomes ready may be a passing helper: its end counts only from then."""
_TICKS = os.sysconf("SC_CLK_TCK")

log = structlog.get_logger()


class DeathWatch:
    """Watches an engine; `on_death(evidence)` is called once, in the event loop that made this."""

    def __init__(
        self,
        main: Identity,
        lifelines: Path | None,
        child: "subprocess.Popen[Any] | None",
        on_death: Callable[[str], None],
    ) -> None:
        """Watch the process `main` (our `child`, unless adopted); its lifelines are files named by pid."""
        self._main = main
        self._lifelines = lifelines
        self._child = child
        self._on_death = on_death
        self._loop = asyncio.get_running_loop()
        self._dead = False
        self._closed = False
        self._members: dict[int, Member] = {}
        self._timer: asyncio.TimerHandle | None = None
        if not self._add(main):
            self._loop.call_soon(self._died, main, "process table: ended")
        self._tick()

    @property
    def members(self) -> list[Identity]:
        """The processes under watch, the main one first."""
        return [member.identity for member in self._members.values()]

    @property
    def halted(self) -> bool:
        """Whether one of them is stopped by a signal or a debugger, as of some milliseconds ago."""
        return any(member.halted for member in self._members.values())

    def cover(self, identities: Iterable[Identity]) -> None:
        """Watch these processes, too: from now on the engine's death is that of any of them."""
        for identity in identities:
            if identity.pid not in self._members:
                self._add(identity)
        # Now, not earlier: by now each Python process holds its lifeline.
        if self._lifelines is not None:
            for member in self._members.values():
                member.watch_lifeline(self._lifelines)

    async def close(self) -> None:
        """Stop watching."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        members = list(self._members.values())
        for member in members:
            member.stop()
        await asyncio.gather(*(asyncio.to_thread(member.join) for member in members))

    def _add(self, identity: Identity) -> bool:
        counts_from = 0.0
        if identity != self._main:
            age = time.clock_gettime(time.CLOCK_BOOTTIME) - identity.started / _TICKS
            counts_from = time.monotonic() + _SETTLED_S - age
        try:
            self._members[identity.pid] = Member(identity, self._alarm, counts_from)
        except ProcessLookupError as error:
            log.debug("engine.process_gone", pid=identity.pid, error=str(error))
            return False
        except OSError as error:  # no descriptors left: trouble of ours, and no death
            log.warning("engine.process_unwatched", pid=identity.pid, error=str(error))
        return True

    def _drop(self, identity: Identity) -> None:
        member = self._members.pop(identity.pid, None)
        if member is not None:
            member.stop()

    def _tick(self) -> None:
        if self._closed:
            return
        for member in list(self._members.values()):
            seen = member.look()
            if seen:
                self._alarm(member, seen)
        self._timer = self._loop.call_later(_POLL_S, self._tick)

    def _alarm(self, member: Member, sensor: str) -> None:
        if self._closed or self._members.get(member.identity.pid) is not member:
            return
        if time.monotonic() < member.counts_from:
            log.debug("engine.helper_ended", pid=member.identity.pid, name=member.name)
        else:
            self._died(member.identity, sensor, member.name)
        self._drop(member.identity)

    def _died(self, identity: Identity, sensor: str, name: str = "") -> None:
        if self._closed:
            return
        if identity == self._main:
            how = exit_text(self._child)
            evidence = f"{sensor}; pid {identity.pid}" + (f" {how}" if how else "")
        else:
            evidence = f"{sensor}; pid {identity.pid} ({name}) of the engine with pid {self._main.pid}"
        if self._dead:
            log.debug("engine.process_ended", evidence=evidence)
            return
        self._dead = True
        self._on_death(evidence)


def exit_text(child: "subprocess.Popen[Any] | None") -> str:
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
