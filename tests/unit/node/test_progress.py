"""The progress bookkeeping, in virtual time, and the loop that asks the engine."""

import asyncio
import time
from collections.abc import Callable
from typing import cast

from hypothesis import given
from hypothesis import strategies as st

from engines.base import Engine, Progress
from node.progress import ProgressLog, follow
from recovery.stopping import stop_tasks


def answer(counter: int, running: int = 0, waiting: int = 0) -> Progress:
    """Build an engine's answer."""
    return Progress(counter=counter, running=running, waiting=waiting, free_ratio=0.5)


def test_an_idle_engine_never_stands_still() -> None:
    """Without work there is no stall, however long the counter rests."""
    log = ProgressLog(0.0)
    log.answered(1.0, answer(7))
    log.answered(60.0, answer(7))

    view = log.view(60.5)

    assert (view.still_ms, view.age_ms, view.counter) == (0, 500, 7)


def test_a_moving_counter_resets_the_still_time() -> None:
    """The still time counts from the answer in which the counter last moved."""
    log = ProgressLog(0.0)
    log.answered(1.0, answer(10, running=1))
    log.answered(1.2, answer(12, running=1))
    log.answered(1.4, answer(12, running=1))

    assert log.view(1.5).still_ms == 300


def test_silence_counts_as_standing_still_while_work_is_pending() -> None:
    """A hung engine answers nothing: its still time and the age of its answer both grow."""
    log = ProgressLog(0.0)
    log.answered(1.0, answer(10, waiting=2))

    view = log.view(3.0)

    assert (view.still_ms, view.age_ms, view.waiting) == (2_000, 2_000, 2)


def test_silence_of_an_idle_engine_shows_in_the_age_only() -> None:
    """Nothing was pending, so nothing stands still."""
    log = ProgressLog(0.0)
    log.answered(1.0, answer(10))

    view = log.view(3.0)

    assert (view.still_ms, view.age_ms) == (0, 2_000)


def test_work_that_arrives_after_a_pause_starts_a_new_count() -> None:
    """The counter rested while idle; that time is not held against the engine."""
    log = ProgressLog(0.0)
    log.answered(1.0, answer(10, running=1))
    log.answered(2.0, answer(10))
    log.answered(9.0, answer(10, running=1))

    assert log.view(9.1).still_ms == 100


def test_an_engine_that_never_answered_has_only_an_age() -> None:
    """Right after its start nothing is known."""
    view = ProgressLog(5.0).view(5.25)

    assert (view.age_ms, view.still_ms, view.running) == (250, 0, 0)


@given(st.lists(st.tuples(st.floats(0, 10), st.integers(0, 3), st.integers(0, 2)), max_size=30), st.floats(0, 10))
def test_still_time_is_bounded_by_what_happened(steps: list[tuple[float, int, int]], rest: float) -> None:
    """Never negative, zero without work, never longer than since the last move of the counter."""
    log = ProgressLog(0.0)
    now, counter, moved = 0.0, 0, 0.0
    running = 0
    for pause, grown, running in steps:
        now += pause
        counter += grown
        moved = now if grown else moved
        log.answered(now, answer(counter, running=running))

    view = log.view(now + rest)

    assert 0 <= view.still_ms <= round((now + rest - moved) * 1_000) + 1
    assert running or view.still_ms == 0


def test_an_engine_that_owes_an_answer_is_busy_and_then_stands() -> None:
    """Even an idle one: the question itself is work it does not do."""
    log = ProgressLog(0.0)
    log.answered(1.0, answer(10))
    assert not log.busy(5.0)

    log.asked(5.0)

    assert (log.busy(5.01), log.stands(5.01)) == (False, False)
    assert (log.busy(5.06), log.stands(5.06)) == (True, False)
    assert log.stands(5.2)
    log.answered(5.3, answer(10))
    assert (log.busy(5.4), log.stands(5.4)) == (False, False)


def test_a_counter_that_rests_under_work_stands() -> None:
    """Then its processes are looked at closely."""
    log = ProgressLog(0.0)
    log.answered(1.0, answer(10, running=1))
    log.answered(1.1, answer(11, running=1))

    assert (log.busy(1.15), log.stands(1.15), log.stands(1.21)) == (True, False, True)


def test_what_the_engine_says_of_prompts_and_compiling_is_shown() -> None:
    """Both excuse a counter that stands, for a while."""
    log = ProgressLog(0.0)
    log.answered(1.0, Progress(1, running=2, waiting=0, free_ratio=1.0, prefilling=1, phase="compiling"))

    assert (log.view(1.0).prefilling, log.view(1.0).compiling) == (1, True)


class FakeEngine:
    """Answers a question when told to."""

    def __init__(self) -> None:
        self.questions = 0
        self.open = 0
        self.may_answer = asyncio.Event()

    async def progress(self, timeout: float) -> Progress:  # noqa: ARG002 - the adapters' signature
        """Answer late."""
        self.questions += 1
        self.open += 1
        try:
            await self.may_answer.wait()
        finally:
            self.open -= 1
        return answer(self.questions)


class Following:
    """The loop that asks, and whom it asks."""

    def __init__(self, engine: FakeEngine) -> None:
        self.log = ProgressLog(0.0)
        self.current: tuple[Engine, ProgressLog] | None = (cast("Engine", engine), self.log)
        self._task = asyncio.create_task(follow(lambda: self.current, 10))

    async def until(self, question: Callable[[], bool]) -> None:
        """Poll until the answer is yes."""
        async with asyncio.timeout(10):
            while not question():  # noqa: ASYNC110 - no event
                await asyncio.sleep(0.005)

    async def close(self) -> None:
        """End the loop."""
        await stop_tasks(self._task)


async def test_a_question_stays_open_while_the_engine_takes_its_time() -> None:
    """A starved engine, asked anew again and again, would never get an answer out."""
    engine = FakeEngine()
    following = Following(engine)
    try:
        await following.until(lambda: engine.questions == 1)
        await asyncio.sleep(0.3)  # thirty times the interval
        assert (engine.questions, engine.open) == (1, 1)
        assert following.log.stands(time.monotonic())

        engine.may_answer.set()
        await following.until(lambda: following.log.view(time.monotonic()).counter > 1)
    finally:
        await following.close()


async def test_a_question_to_an_engine_that_was_replaced_is_dropped() -> None:
    """The new one must not wait for the old one's answer."""
    old, new = FakeEngine(), FakeEngine()
    new.may_answer.set()
    following = Following(old)
    try:
        await following.until(lambda: old.open == 1)
        log = ProgressLog(0.0)
        following.current = (cast("Engine", new), log)

        await following.until(lambda: log.view(time.monotonic()).counter > 0)

        assert old.open == 0
    finally:
        await following.close()
