"""Measures what the engine's processes do with their time: seldom while it is idle, closely while it stands.

What `node.effort` sums up; the sentinel tells starved, computing and stuck engines apart by it.
"""

import asyncio
import time
from collections.abc import Callable

from node.effort import measure
from node.running import Running

_IDLE_S = 0.5
_CLOSE_S = 0.03
_SHARE = 1 / 30
"""Share of one core that measuring may cost: engines with thousands of threads are looked at less often."""


async def watch_effort(current: Callable[[], Running | None], interval_ms: int) -> None:
    """Measure the current engine, about every `interval_ms` while it works, until cancelled."""
    interval = interval_ms / 1_000
    cost = 0.0
    while True:
        engine = current()
        now = time.monotonic()
        pause = min(interval, _IDLE_S)
        if engine is not None and engine.watch is not None:
            closely, busy = engine.progress.stands(now), engine.progress.busy(now)
            wanted = min(interval, _CLOSE_S) if closely else interval if busy else _IDLE_S
            if engine.effort.age_s(now) >= max(wanted, cost / _SHARE):
                members = engine.watch.members
                measured, cost = await asyncio.to_thread(measure, members, closely=closely)
                engine.effort.take(time.monotonic(), measured)
            pause = min(pause, _CLOSE_S if closely or busy else interval)  # to see at once that it stands
        await asyncio.sleep(pause)
