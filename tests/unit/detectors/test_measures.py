"""The judge's own time, and how a link is learned."""

from hypothesis import given
from hypothesis import strategies as st

from detectors.measures import OwnTime, Rtt


@given(st.lists(st.floats(0, 100), max_size=50))
def test_own_time_never_runs_faster_than_the_clock_nor_backwards(steps: list[float]) -> None:
    """What was slept through is given back as the return value."""
    own, now, slept = OwnTime(0.0), 0.0, 0.0
    for step in steps:
        now += step
        before = own.now
        slept += own.look(now)
        assert before <= own.now <= now + 1e-9
    assert abs(own.now + slept - now) < 1e-6


@given(st.lists(st.floats(1, 5e6), max_size=50))
def test_the_pong_deadline_stays_within_its_bounds(samples: list[float]) -> None:
    """80 ms and 1 s, whatever was measured."""
    rtt = Rtt(0.2, 0.08, 1.0)
    for sample in samples:
        rtt.add(sample, calm=False)
    assert 0.08 <= rtt.deadline_s <= 1.0


def test_the_baseline_is_learned_in_good_times_only() -> None:
    """A slow link before a failure must not become the measure of recovery."""
    rtt = Rtt(0.2, 0.08, 1.0)
    for _ in range(50):
        rtt.add(1_000.0, calm=True)
    for _ in range(50):
        rtt.add(90_000.0, calm=False)
    assert rtt.baseline_us == 1_000.0
    assert not rtt.at_baseline
