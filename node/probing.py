"""Runs the sentinels' probes beside the engine, one at a time: who asks meanwhile gets that one's outcome."""

import asyncio
import time

from engines.probing import Outcome, Shown, probe
from node.running import Running
from recovery.stopping import stop_tasks


class Prober:
    """The one probe that may be under way in the node's engine."""

    def __init__(self) -> None:
        self._task: asyncio.Task[Shown] | None = None
        self._engine: Running | None = None
        self._began = 0.0

    @property
    def under_way_s(self) -> float:
        """How long the present probe has been under way; 0 when there is none."""
        return time.monotonic() - self._began if self._task is not None else 0.0

    async def run(self, engine: Running, deadline_s: float) -> Shown:
        """Probe the engine, or wait for the probe that it has already; a caller that leaves does not end it."""
        if self._task is not None and self._engine is not engine:
            await stop_tasks(self._task)  # it was in an engine that is no more
        if self._task is None:
            self._engine, self._began = engine, time.monotonic()
            self._task = asyncio.create_task(probe(engine.adapter, deadline_s), name="probe")
            self._task.add_done_callback(self._over)
        try:
            return await asyncio.shield(self._task)
        except asyncio.CancelledError:
            if self._task is None or not self._task.cancelled():
                raise
            return Shown(Outcome.NEUTRAL, 0.0, "called off")

    async def close(self) -> None:
        """Call off what is under way."""
        if self._task is not None:
            await stop_tasks(self._task)

    def _over(self, task: "asyncio.Task[Shown]") -> None:
        if self._task is task:
            self._task = None
        if not task.cancelled():
            task.exception()  # seen: the callers may be gone
