"""Busy, stuck and refusing told apart in virtual time, as reported failures had them (G4-01, G4-02, G7-02)."""

from dataclasses import replace

import pytest

from detectors import evidence as ev
from detectors.evidence import Report
from recovery.registry import NodeState
from tests.unit.detectors.courtroom import BUSY, RULES, SERVING, World, open_court

WITHIN_S = 10.0
"""Detection window of the reported failures."""
PREFILL = replace(SERVING, running=1)
BURST = replace(SERVING, running=4, waiting=1_276)


@pytest.mark.parametrize(
    ("report", "tokens_per_s", "probe_after"),
    [(PREFILL, 4.0, None), (BURST, 50.0, 25.0)],
    ids=["prefill of 60 s", "burst of 1,280"],
)
def test_a_working_engine_outlives_late_probes_and_the_same_one_frozen_does_not(
    report: Report, tokens_per_s: float, probe_after: float | None
) -> None:
    """Counters that move keep it alive; once they stand, no queue excuses it beyond the window (case G4-02)."""
    court = open_court(world=World(report=report, tokens_per_s=tokens_per_s, probe_after=probe_after))
    for _ in range(15):
        court.tell(ev.ProbeDue())
        court.run(4.0)
    assert court.verdicts == []
    assert court.judge.weight == 1.0
    # When its counters stand
    court.world.tokens_per_s, court.world.probe_after = 0.0, None
    took = court.run(60.0, until=lambda: bool(court.verdicts))
    # Then
    assert [verdict.cause for verdict in court.verdicts] == ["hang"]
    assert took <= WITHIN_S


def test_pongs_and_reports_on_time_are_no_proof_of_the_engine_s_life() -> None:
    """The agent's threads answer everything, the engine's loop stands with work pending (case G7-02)."""
    court = open_court(world=World(report=BUSY, pong_after=0.001, status_after=0.001, probe_after=None))
    took = court.run(60.0, until=lambda: bool(court.verdicts))
    assert court.judge.misses == 0
    assert [verdict.cause for verdict in court.verdicts] == ["hang"]
    assert took <= WITHIN_S


def test_refusals_between_failures_do_not_hide_a_broken_engine() -> None:
    """A 4xx is no success: the second failure counts as the second (case G4-01)."""
    court = open_court()
    court.tell(ev.ProbeDue())
    court.run(1.0)
    for says in (ev.ProbeFailed("HTTP 500"), ev.ProbeNeutral("HTTP 400")) * 3:
        court.world.probe_says = says
        court.tell(ev.ProbeDue())
        court.run(0.2)
    assert [verdict.cause for verdict in court.verdicts] == ["unreachable"]


def test_refusals_do_not_earn_a_node_on_probation_its_traffic() -> None:
    """Half-open, and every probe refused with a 4xx: not failed, not proven either (case G4-01)."""
    court = open_court(NodeState.PROBATION, World(), weight=0.0)
    court.judge.adopt(NodeState.PROBATION, 0.0)
    court.world.probe_says = ev.ProbeNeutral("HTTP 400")
    for _ in range(10):
        court.tell(ev.ProbeDue())
        court.run(RULES.probation.hold_s / 3)
    assert court.verdicts == []
    assert (court.judge.state, court.judge.weight) == (NodeState.PROBATION, 0.0)


def test_an_engine_that_answers_its_first_probes_without_a_token_is_reached_and_broken() -> None:
    """It answers, so the address is right; and it makes nothing (case G1-04)."""
    court = open_court(world=World(probe_says=ev.ProbeFailed("no token", answered=True)))
    for _ in range(3):
        court.tell(ev.ProbeDue())
        court.run(2.0)
    assert [verdict.cause for verdict in court.verdicts] == ["unreachable"]
