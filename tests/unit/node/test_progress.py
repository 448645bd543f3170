"""The progress bookkeeping, in virtual time."""

from hypothesis import given
from hypothesis import strategies as st

from engines.base import Progress
from node.progress import ProgressLog


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
