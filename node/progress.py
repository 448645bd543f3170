"""Whether the engine's work moves: its own counter, how old the last answer is, how long it stands still.

`ProgressLog` is pure; `follow` asks the engine and feeds it (requirements E4).
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from engines.base import Engine, EngineError, Progress
from recovery.stopping import stop_tasks

_MAX_MS = 2**32 - 1
_PATIENCE_S = 5.0
"""How long a question may stay unanswered before it is given up and asked anew: a starved engine answers late."""
_STANDS_S = 0.1
"""A counter that stands, or a question unanswered, for so long deserves a closer look."""


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
    prefilling: int = 0
    free_ratio: float = 1.0
    compiling: bool = False


class ProgressLog:
    """Bookkeeping over the engine's answers; times are monotonic seconds of the caller's clock."""

    def __init__(self, now: float) -> None:
        self._last: Progress | None = None
        self._answered = now
        self._asked: float | None = None
        self._still_since: float | None = None

    def asked(self, now: float) -> None:
        """Take note of a question that the engine owes an answer to."""
        if self._asked is None:
            self._asked = now

    def answered(self, now: float, progress: Progress) -> None:
        """Take an answer of the engine in."""
        moved = self._last is None or progress.counter != self._last.counter
        if not progress.running + progress.waiting:
            self._still_since = None
        elif moved or self._still_since is None:
            self._still_since = now
        self._last = progress
        self._answered = now
        self._asked = None

    def busy(self, now: float) -> bool:
        """Whether work is pending or a question has been unanswered for longer than an instant."""
        return self._still_since is not None or self._unanswered(now) > _STANDS_S / 2

    def stands(self, now: float) -> bool:
        """Whether work, or a question, has waited for longer than is usual."""
        still = 0.0 if self._still_since is None else now - self._still_since
        return max(still, self._unanswered(now)) >= _STANDS_S

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
            prefilling=self._last.prefilling,
            free_ratio=self._last.free_ratio,
            compiling=self._last.phase == "compiling",
        )

    def _unanswered(self, now: float) -> float:
        return 0.0 if self._asked is None else now - self._asked


async def follow(current: Callable[[], tuple[Engine, ProgressLog] | None], interval_ms: int) -> None:
    """Ask the current engine every interval, one question at a time, until cancelled."""
    interval = interval_ms / 1_000
    while True:
        began = time.monotonic()
        about = current()
        if about is not None:
            await _ask(about, current, interval)
        await asyncio.sleep(max(0.01, interval - (time.monotonic() - began)))


async def _ask(
    about: tuple[Engine, ProgressLog], current: Callable[[], tuple[Engine, ProgressLog] | None], interval: float
) -> None:
    """Ask one question and wait for its answer as long as this engine is the current one."""
    engine, log = about
    log.asked(time.monotonic())
    question = asyncio.create_task(engine.progress(_PATIENCE_S), name="progress question")
    try:
        end = time.monotonic() + _PATIENCE_S + interval
        while not question.done() and current() == about and time.monotonic() < end:
            await asyncio.wait({question}, timeout=interval)
        if question.done():
            log.answered(time.monotonic(), question.result())
    except EngineError:
        pass  # silence shows in the age of the last answer
    finally:
        await stop_tasks(question)


def _ms(seconds: float) -> int:
    return min(_MAX_MS, max(0, round(seconds * 1_000)))
