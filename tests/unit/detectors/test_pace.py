"""A sentinel with too many nodes pings more slowly; one that is late for a moment does not."""

from detectors.pace import Pace

USUAL_S = 0.1


def woken(pace: Pace, late_s: float, seconds: float, now: float) -> float:
    """Have timers be late by `late_s` for `seconds`; return the time after that."""
    end = now + seconds
    while now < end:
        pace.woke(late_s, now)
        now += 0.01
    return now


def test_timers_that_are_steadily_late_stretch_the_pause_between_pings() -> None:
    """Overload makes it slower ..."""
    pace = Pace(USUAL_S)
    woken(pace, 0.05, 3.0, 1_000.0)
    assert pace.interval_s > 1.5 * USUAL_S


def test_the_pause_has_an_end() -> None:
    """... but not without bound."""
    pace = Pace(USUAL_S)
    woken(pace, 5.0, 60.0, 1_000.0)
    assert pace.interval_s == 1.0


def test_a_burst_stretches_nothing() -> None:
    """A moment without a CPU is no lack of it."""
    pace = Pace(USUAL_S)
    now = woken(pace, 0.0, 2.0, 1_000.0)
    now = woken(pace, 0.2, 0.4, now)
    woken(pace, 0.0, 2.0, now)
    assert pace.interval_s == USUAL_S


def test_the_usual_pace_returns_with_ease() -> None:
    """All nodes are pinged as often as before, and no more often."""
    pace = Pace(USUAL_S)
    now = woken(pace, 0.05, 5.0, 1_000.0)
    woken(pace, 0.001, 60.0, now)
    assert pace.interval_s == USUAL_S


def test_a_longer_pause_that_was_set_is_never_shortened() -> None:
    """The settings' pause is the least."""
    pace = Pace(3.0)
    now = woken(pace, 5.0, 10.0, 1_000.0)
    woken(pace, 0.0, 10.0, now)
    assert pace.interval_s == 3.0
