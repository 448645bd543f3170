"""Whether the engine's work moves: its own counter, how old the last answer is, how long it stands still.

`ProgressLog` is pure; `follow` asks the engine and feeds it (requirements E4).
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from engines.base import Engine, EngineError, Progress

_MAX_MS = 2**32 - 1


@dataclass(frozen=True, slots=True)
class View:
    """The progress as seen at one moment."""

    counter: int = 0
    age_ms: int = 0
    """Since the engine last answered."""
    still_ms: int = 0
    """Since the counter last moved while work was pending; 0 without work."""
    running: int = 0
    waiting: int = 0
    free_ratio: float = 1.0


class ProgressLog:
    """Bookkeeping over the engine's answers; times are monotonic seconds of the caller's clock."""

    def __init__(self, now: float) -> None:
        self._last: Progress | None = None
        self._answered = now
        self._still_since: float | None = None

    def answered(self, now: float, progress: Progress) -> None:
        """Take an answer of the engine in."""
        moved = self._last is None or progress.counter != self._last.counter
        if not progress.running + progress.waiting:
            self._still_since = None
        elif moved or self._still_since is None:
            self._still_since = now
        self._last = progress
        self._answered = now

    def view(self, now: float) -> View:
        """Return what is known at `now`; silence counts as standing still if work was pending before it."""
        still = 0.0 if self._still_since is None else now - self._still_since
        if self._last is None:
            return View(age_ms=_ms(now - self._answered))
        return View(
            counter=self._last.counter,
            age_ms=_ms(now - self._answered),
            still_ms=_ms(still),
            running=self._last.running,
            waiting=self._last.waiting,
            free_ratio=self._last.free_ratio,
        )


async def follow(current: Callable[[], tuple[Engine, ProgressLog] | None], interval_ms: int) -> None:
    """Ask the current engine every interval, one question at a time, until cancelled."""
    interval = interval_ms / 1_000
    while True:
        began = time.monotonic()
        asked = current()
        if asked is not None:
            engine, log = asked
            try:
                progress = await asyncio.wait_for(engine.progress(2 * interval), 3 * interval)
            except (EngineError, TimeoutError):
                pass  # silence shows in the age of the last answer
            else:
                log.answered(time.monotonic(), progress)
        await asyncio.sleep(max(0.01, interval - (time.monotonic() - began)))


def _ms(seconds: float) -> int:
    return min(_MAX_MS, max(0, round(seconds * 1_000)))
