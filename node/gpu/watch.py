"""Keeps an eye on the node's GPUs for as long as the agent runs."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog

from node.gpu.client import Client, Deadlines, Silent
from node.gpu.health import Health, State
from node.gpu.reading import XidEvent

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Pace:
    """Pauses between questions by the GPUs' state, s."""

    ok: float = 1.0
    again: float = 0.2
    """To confirm what is new, and after a question that was not answered."""
    telemetry_lost: float = 5.0
    lost: float = 10.0
    """In between nobody has the driver open, so that the GPU can be reset."""
    none: float = 60.0


class GpuWatch:
    """Asks once a second; `changed` is called after each change of `health`'s state or detail."""

    def __init__(
        self,
        node: str,
        epoch: Callable[[], int],
        wanted: Sequence[str] | None,
        changed: Callable[[], None],
        lock: Path | None = None,
        pace: Pace | None = None,
        deadlines: Deadlines | None = None,
    ) -> None:
        self.health = Health(wanted)
        self._node = node
        self._epoch = epoch
        self._changed = changed
        self._pace = pace or Pace()
        self._wake = asyncio.Event()
        self._client = Client(self._xid, lock, deadlines)

    @property
    def helper_pids(self) -> list[int]:
        """The helper processes that may live: never more than one."""
        return self._client.pids

    async def run(self) -> None:
        """Watch until cancelled; a node without GPUs needs no watching."""
        if self.health.wanted is not None and not self.health.wanted:
            await asyncio.Event().wait()
        try:
            while True:
                self._wake.clear()
                await self._look()
                try:
                    await asyncio.wait_for(self._wake.wait(), self._pause_s())
                except TimeoutError:
                    continue
        finally:
            self._client.close()

    async def _look(self) -> None:
        before = self._standing()
        try:
            reading = await self._client.ask(self.health.wanted)
        except Silent as silence:
            self.health.silence(str(silence))
            log.debug("gpu.silent", **self._who(), detail=str(silence))
        else:
            self.health.answer(reading)
        self._tell(before)
        if self.health.state is not State.OK and not self.health.doubtful:
            # The next look is with fresh eyes, and meanwhile nothing of ours is in the driver's way.
            await self._client.let_go()

    def _xid(self, event: XidEvent) -> None:
        before = self._standing()
        ours = self.health.xid(event)
        log.warning("gpu.xid", **self._who(), code=event.code, gpu=event.uuid or event.index, ours=ours)
        self._tell(before)
        if ours:
            self._wake.set()

    def _tell(self, before: tuple[State, str]) -> None:
        now = self._standing()
        if now != before:
            said = log.info if self.health.state in (State.NONE, State.OK) else log.error
            said("gpu.state", **self._who(), state=self.health.state.value or "none", detail=self.health.detail)
            self._changed()

    def _who(self) -> dict[str, str | int]:
        return {"node": self._node, "epoch": self._epoch()}

    def _standing(self) -> tuple[State, str]:
        return self.health.state, self.health.detail

    def _pause_s(self) -> float:
        if self.health.unsettled:
            return self._pace.again
        match self.health.state:
            case State.OK:
                return self._pace.ok
            case State.LOST:
                return self._pace.lost
            case State.TELEMETRY_LOST:
                return self._pace.telemetry_lost
            case State.NONE:
                return self._pace.none
        return self._pace.again
