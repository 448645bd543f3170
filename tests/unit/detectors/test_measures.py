"""The judge's own time, and how a link is learned."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detectors.measures import Chances, OwnTime, Rtt


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


@given(
    st.lists(st.tuples(st.floats(0.01, 1.0), st.floats(0, 1), st.floats(0, 2)), min_size=1, max_size=30),
    st.booleans(),
    st.integers(0, 29),
)
def test_an_engine_s_chances_never_exceed_the_time_there_was(
    samples: list[tuple[float, float, float]], on_cpu: bool, marked: int
) -> None:
    """Whatever it used or waited for, and wherever between two samples the mark was made."""
    chances, now, cpu, wait = Chances(), 0.0, 0.0, 0.0
    mark = chances.mark(0.0)
    for number, (step, cpu_share, wait_share) in enumerate(samples):
        now, cpu, wait = now + step, cpu + step * cpu_share, wait + step * wait_share
        chances.sample(now, cpu, wait, on_cpu=on_cpu)
        if number == marked:
            mark = chances.mark(now + step / 2)
    chance = chances.since(mark)
    assert 0.0 <= chance.standing <= chance.unstarved <= chance.passed <= now


def test_only_what_was_sampled_counts_as_standing() -> None:
    """What came after the last sample is not known yet."""
    chances = Chances()
    chances.sample(1.0, 0.0, 0.0, on_cpu=True)
    mark = chances.mark(1.0)
    assert chances.since(mark).standing == 0.0
    chances.sample(2.0, 0.3, 0.2, on_cpu=True)
    assert chances.since(mark).standing == pytest.approx(0.5)
    assert chances.since(mark).unstarved == pytest.approx(0.8)
    chances.sample(3.0, 1.3, 0.2, on_cpu=False)
    assert chances.since(mark).standing == pytest.approx(1.8)  # beside a GPU, CPU time is no work
