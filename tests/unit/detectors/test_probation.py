"""Half-open time: no weight before it is earned, none after a failure."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from detectors import evidence as ev
from detectors.probation import Probation
from detectors.verdict import Judge
from recovery.config import ProbationSettings
from recovery.registry import NodeState
from tests.unit.detectors.courtroom import BUSY, RULES, SERVING, Courtroom, World, open_court

QUICK = ProbationSettings(hold_s=10, step=0.1, step_interval_s=1, hold_factor=2, hold_max_s=35)


@settings(max_examples=100, deadline=None)
@given(steps=st.lists(st.tuples(st.sampled_from("pfcn"), st.floats(0.01, 3.0)), max_size=120))
def test_no_weight_before_a_clean_hold(steps: list[tuple[str, float]]) -> None:
    """Whatever passes or fails, weight comes only after `hold_s` without a failure and with a success."""
    probation, now, clean_since, passed = Probation(QUICK, 0.0), 0.0, 0.0, False
    for what, pause in steps:
        now += pause
        if what == "p":
            probation.passed()
            passed = True
        elif what == "f":
            probation.failed(now)
            clean_since, passed = now, False
        before = probation.weight
        probation.tick(now, calm=what != "n")
        if probation.weight > 0:
            assert passed
            assert now - clean_since >= QUICK.hold_s
        assert what != "f" or probation.weight == 0.0
        assert what != "n" or probation.weight == before
        assert 0.0 <= probation.weight <= 1.0


def test_weight_returns_step_by_step() -> None:
    """Ten steps of a tenth, one a second."""
    probation = Probation(QUICK, 0.0)
    probation.passed()
    weights = [probation.weight for second in range(25) if probation.tick(float(second), calm=True)]
    assert [round(0.1 * step, 9) for step in range(1, 11)] == weights
    assert probation.over


def test_failures_make_the_hold_longer_up_to_a_limit() -> None:
    """Doubling, capped."""
    probation = Probation(QUICK, 0.0)
    holds = []
    for _ in range(4):
        probation.failed(0.0)
        holds.append(probation.hold_s)
    assert holds == [20, 35, 35, 35]


def test_a_node_on_probation_becomes_alive_after_hold_and_ramp() -> None:
    """Through the judge, with the default figures: 60 s, then 1 % a second."""
    court = open_court(NodeState.PROBATION, weight=0.0)
    took = court.run(300.0, until=lambda: court.judge.state is NodeState.ALIVE)
    assert 55 + 99 <= took <= 61 + 100
    assert court.judge.weight == 1.0


def test_a_late_probe_on_probation_takes_the_weight_away() -> None:
    """At once, before any verdict."""
    court = open_court(NodeState.PROBATION, weight=0.5)
    court.world.probe_after = None
    court.tell(ev.ProbeDue())
    court.run(RULES.probe_deadline_s + 0.1)
    assert NodeState.PROBATION is court.judge.state
    assert court.judge.weight == 0.0
    court._due.clear()
    court.world.probe_after = 0.05
    court.tell(ev.ProbePassed(0.05))  # the second one, which follows at once
    court.run(RULES.probation.hold_s * 1.9)
    assert court.judge.weight == 0.0
    court.run(RULES.probation.hold_s * 0.3)
    assert court.judge.weight > 0.0


def test_a_late_probe_on_a_busy_node_costs_no_weight() -> None:
    """Its counter moves: it works for others."""
    court = open_court(NodeState.PROBATION, World(report=BUSY, tokens_per_s=20, probe_after=None), 0.5)
    court.tell(ev.ProbeDue())
    court.run(4 * RULES.probe_deadline_s)
    assert court.judge.weight >= 0.5
    assert court.verdicts == []


def test_a_slow_link_keeps_a_node_on_probation() -> None:
    """The round trip must be back at the baseline learned before the failure."""
    before = open_court()
    before.run(30.0)
    judge = type(before.judge)(RULES, 2, NodeState.PROBATION, before.now, before=before.judge)
    report = before.world.report
    court = Courtroom(judge, World(pong_after=0.05, report=type(report)(epoch=2, phase=report.phase)), before.now)
    court.run(200.0)
    assert NodeState.PROBATION is judge.state
    assert judge.weight == 0.0
    court.world.pong_after = 0.001
    court.run(20.0)
    assert judge.weight > 0


def test_a_death_on_probation_makes_the_next_one_hold_longer() -> None:
    """A node that comes back only to die again waits longer each time; full weight forgives."""
    judge, now, holds = None, 1_000.0, []
    for epoch in range(1, 4):
        judge = Judge(RULES, epoch, NodeState.PROBATION, now, before=judge)
        court = Courtroom(judge, World(report=replace(SERVING, epoch=epoch)), now)
        court.run(5.0)
        holds.append(judge.hold_s)
        court.tell(ev.EngineDown(epoch, "process_exit", "again"))
        now = court.now
    assert holds == [RULES.probation.hold_s * 2**n for n in range(3)]
    assert judge is not None
    judge.adopt(NodeState.ALIVE, 1.0)
    judge.adopt(NodeState.PROBATION, 0.0)
    assert judge.hold_s == RULES.probation.hold_s


def test_a_death_after_probation_is_a_first_one_again() -> None:
    """It had its full weight back: the next probation holds as the settings say."""
    judge = Judge(RULES, 1, NodeState.PROBATION, 1_000.0)
    court = Courtroom(judge, World())
    court.run(300.0, until=lambda: judge.state is NodeState.ALIVE)
    court.tell(ev.EngineDown(1, "process_exit", "a new failure"))
    assert judge.hold_s == 0.0
    after = Judge(RULES, 2, NodeState.PROBATION, court.now, before=judge)
    assert after.hold_s == RULES.probation.hold_s


def test_what_another_sentinel_has_learned_is_gone_on_with() -> None:
    """Baseline and hold come with the node."""
    judge = Judge(RULES, 3, NodeState.PROBATION, 1_000.0, baseline_us=900.0, hold_s=240.0)
    court = Courtroom(judge, World(report=replace(SERVING, epoch=3), pong_after=0.05), 1_000.0)
    court.run(300.0)
    assert (judge.hold_s, judge.weight) == (240.0, 0.0)  # 50 ms against a baseline of 0.9 ms
    court.world.pong_after = 0.001
    court.run(20.0)
    assert judge.weight > 0


def test_a_node_on_probation_is_spared_work_while_its_lease_is_gone() -> None:
    """Withheld weight is a failure of probation."""
    court = open_court(NodeState.PROBATION, weight=0.5)
    court.world.report = replace(SERVING, lease_held=False)
    court.tell(ev.LeaseExpired())
    court.run(1.0)
    assert court.verdicts == []
    assert (court.judge.state, court.judge.weight) == (NodeState.PROBATION, 0.0)
