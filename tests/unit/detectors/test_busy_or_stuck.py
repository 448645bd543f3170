"""Busy, stuck and refusing told apart in virtual time, as reported failures had them (G4-01, G4-02, G7-02)."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detectors import evidence as ev
from detectors.evidence import Report
from recovery.registry import NodeState
from tests.unit.detectors.courtroom import BUSY, POLL_S, RULES, SERVING, STEP, Courtroom, World, open_court

WITHIN_S = 10.0
"""Detection window of the reported failures."""
EASY = settings(max_examples=60, deadline=None)
PREFILL = replace(SERVING, running=1, prefilling=1)
ON_CPU = replace(BUSY, computes_on_cpu=True)
STREAMING = World(report=BUSY, tokens_per_s=50)
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


def used_to_probes(court: Courtroom) -> Courtroom:
    """Let some probes pass, so that their usual time is known."""
    for _ in range(3):
        court.tell(ev.ProbeDue())
        court.run(0.5)
    court.said.clear()
    return court


@EASY
@given(before=st.floats(0, 2), on_cpu=st.booleans())
def test_an_engine_frozen_under_traffic_is_dead_about_when_its_counter_has_stood_too_long(
    before: float, on_cpu: bool
) -> None:
    """The probe goes out at half that time, so it is late by then (requirements E4)."""
    court = used_to_probes(open_court(world=replace(STREAMING, report=ON_CPU if on_cpu else BUSY, cpu_share=0.9)))
    court.run(before)
    court.world = replace(court.world, tokens_per_s=0, probe_after=None, engine_answers=False, cpu_share=0)
    took = court.run(10.0, until=lambda: bool(court.verdicts))
    assert [verdict.cause for verdict in court.verdicts] == ["hang"]
    assert took <= RULES.stall_s + POLL_S
    assert court.verdicts[0].took_s >= RULES.stall_s
    assert "no own token" in court.verdicts[0].evidence


def test_an_idle_engine_that_freezes_is_found_because_it_no_longer_answers_its_agent() -> None:
    """No traffic, no periodic probe needed."""
    court = used_to_probes(open_court())
    court.world = replace(court.world, probe_after=None, engine_answers=False)
    took = court.run(10.0, until=lambda: bool(court.verdicts))
    assert [verdict.cause for verdict in court.verdicts] == ["hang"]
    assert "idle and mute" in court.verdicts[0].evidence
    assert took <= 2.0


def test_an_idle_engine_that_only_fails_to_generate_is_dead_after_two_late_probes() -> None:
    """Its front answers everything; the second probe follows at once."""
    court = open_court(world=World(probe_after=None))
    court.tell(ev.ProbeDue())
    took = court.run(10.0, until=lambda: bool(court.verdicts))
    assert [verdict.cause for verdict in court.verdicts] == ["hang"]
    assert 2 * RULES.probe_deadline_s - 2 * STEP <= took <= 2 * RULES.probe_deadline_s + 0.3


def test_one_late_probe_alone_kills_nobody() -> None:
    """The second one passes."""
    court = open_court(world=World(probe_after=None))
    court.tell(ev.ProbeDue())
    court.run(RULES.probe_deadline_s * 0.9)
    court.world.probe_after = 0.05
    court.run(5.0)
    assert court.verdicts == []
    assert NodeState.ALIVE is court.judge.state


@EASY
@given(probe_after=st.floats(0.01, 0.9), seconds=st.floats(1, 30))
def test_a_still_counter_with_own_tokens_in_time_never_kills(probe_after: float, seconds: float) -> None:
    """The engine makes tokens for us: it is not stuck, whatever its counters say."""
    court = open_court(world=World(report=BUSY, probe_after=probe_after))
    court.run(seconds)
    assert court.verdicts == []


def test_a_late_probe_beside_a_moving_counter_means_busy() -> None:
    """A saturated engine is slow to us, not stuck."""
    court = open_court(world=World(report=BUSY, tokens_per_s=5, probe_after=None))
    for _ in range(10):
        court.tell(ev.ProbeDue())
        court.run(4.0)
    assert court.verdicts == []


@EASY
@given(
    share=st.floats(0.0, 0.15),
    starved=st.booleans(),
    pauses=st.lists(st.floats(0.05, 4.0), min_size=1, max_size=8),
)
def test_an_engine_that_gets_no_cpu_is_busy_however_long_its_steps_become(
    share: float, starved: bool, pauses: list[float]
) -> None:
    """Three times oversubscribed: counters stand for seconds, probes are late, its agent's questions go unanswered."""
    court = used_to_probes(open_court(world=replace(STREAMING, report=ON_CPU, cpu_share=0.9, wait_share=0.1)))
    for pause in pauses:
        standing = 0.05
        court.world = replace(
            court.world, tokens_per_s=0, probe_after=None, engine_answers=False,
            cpu_share=share if starved else 0.95 - standing, wait_share=1 - share - standing if starved else 0.0,
        )  # fmt: skip
        court.tell(ev.ProbeDue())
        court.run(pause)
        court.world = replace(court.world, tokens_per_s=50, probe_after=0.1, engine_answers=True)
        court.run(0.3)
    assert court.verdicts == []


@pytest.mark.parametrize(
    ("cpu_share", "wait_share", "bound_s"),
    [(1.0, 0.0, 2 * RULES.spin_s), (0.0, 1.0, 5 * RULES.spin_s)],
    ids=["it spins", "it waits, say in its driver"],
)
def test_no_excuse_is_for_ever(cpu_share: float, wait_share: float, bound_s: float) -> None:
    """An engine that computes, or waits, and never moves is stuck as well."""
    court = used_to_probes(open_court(world=replace(STREAMING, report=ON_CPU, cpu_share=0.9)))
    court.world = replace(
        court.world, tokens_per_s=0, probe_after=None, engine_answers=False, cpu_share=cpu_share, wait_share=wait_share
    )
    took = court.run(60.0, until=lambda: bool(court.verdicts))
    assert [verdict.cause for verdict in court.verdicts] == ["hang"]
    assert took <= bound_s


@pytest.mark.parametrize("wait_share", [0.0, 1.0])
def test_an_idle_engine_without_any_chance_is_not_excused_for_ever_either(wait_share: float) -> None:
    """Late probes are excused for a while only."""
    court = used_to_probes(open_court())
    court.world = replace(court.world, probe_after=None, wait_share=wait_share)
    for _ in range(15):
        court.tell(ev.ProbeDue())
        court.run(4.0, until=lambda: bool(court.verdicts))
    assert [verdict.cause for verdict in court.verdicts] == ["hang"]


def test_a_gpu_that_hangs_while_its_process_spins_is_found_at_once() -> None:
    """Beside a GPU, CPU time is no work: a driver's wait burns it."""
    court = used_to_probes(open_court(world=replace(STREAMING, cpu_share=1.0)))
    court.world = replace(court.world, tokens_per_s=0, probe_after=None)
    took = court.run(10.0, until=lambda: bool(court.verdicts))
    assert [verdict.cause for verdict in court.verdicts] == ["hang"]
    assert took <= RULES.stall_s + 2 * POLL_S


def test_a_long_prompt_beside_a_gpu_has_a_deadline_of_its_own() -> None:
    """An engine whose counter never showed the steps of a prompt is given the time of a whole one."""
    court = used_to_probes(open_court())
    court.world = World(report=PREFILL, probe_after=None)
    court.run(RULES.prefill_deadline_s - 5)
    assert court.verdicts == []
    court.run(30.0, until=lambda: bool(court.verdicts))
    assert [verdict.cause for verdict in court.verdicts] == ["hang"]


def test_an_engine_that_shows_the_steps_of_its_prompts_is_held_to_them() -> None:
    """Having moved in a prompt before, it may not stand in one for minutes."""
    court = open_court(world=World(report=PREFILL, tokens_per_s=2.0))
    court.run(10.0)
    court.world = replace(court.world, tokens_per_s=0, probe_after=None)
    took = court.run(60.0, until=lambda: bool(court.verdicts))
    assert [verdict.cause for verdict in court.verdicts] == ["hang"]
    assert took <= WITHIN_S


def test_a_stopped_process_has_no_excuse_in_its_prompt() -> None:
    """SIGSTOP in the middle of a prefill."""
    court = used_to_probes(open_court())
    court.world = World(report=replace(PREFILL, halted=True), probe_after=None, engine_answers=False)
    took = court.run(60.0, until=lambda: bool(court.verdicts))
    assert took <= 1.0
    assert "stopped by a signal" in court.verdicts[0].evidence


@EASY
@given(gap=st.floats(0.01, 1.0))
def test_each_node_learns_its_usual_gap(gap: float) -> None:
    """One that moves once a second is not stuck after half of one."""
    court = open_court(world=World(report=BUSY, tokens_per_s=1 / gap, probe_after=None))
    court.run(30.0)
    assert court.verdicts == []
    court.world = replace(court.world, tokens_per_s=0)
    court.run(60.0, until=lambda: bool(court.verdicts))
    assert court.verdicts[0].took_s >= max(RULES.stall_s, 4 * (gap - POLL_S)) - STEP
    assert [verdict.cause for verdict in court.verdicts] == ["hang"]


def test_tokens_at_gateways_count_where_the_engine_s_own_counter_is_not_to_be_had() -> None:
    """Its front no longer answers its agent, but it still streams."""
    court = used_to_probes(open_court(world=STREAMING))
    court.world = replace(court.world, probe_after=None, engine_answers=False)
    for _ in range(50):
        court.tell(ev.TokensSeen(0.02))
        court.run(0.2)
    assert court.verdicts == []


def test_late_frames_of_a_buffer_do_not_count_beside_a_counter_that_stands() -> None:
    """The engine says itself that it makes nothing (case G1-02)."""
    court = used_to_probes(open_court(world=STREAMING))
    court.world = replace(court.world, probe_after=None, tokens_per_s=0)
    for _ in range(50):
        court.tell(ev.TokensSeen(0.02))
        court.run(0.2, until=lambda: bool(court.verdicts))
    assert [verdict.cause for verdict in court.verdicts] == ["hang"]


def test_compiling_is_neither_a_stall_nor_for_ever() -> None:
    """A phase with a deadline of its own."""
    compiling = replace(BUSY, phase=ev.Phase.COMPILING)
    court = open_court(world=World(report=compiling, probe_after=None))
    court.run(RULES.compile_deadline_s - 5)
    assert court.verdicts == []
    court.run(10.0)
    assert [verdict.cause for verdict in court.verdicts] == ["hang"]


def test_a_lost_gpu_is_proof_and_a_silent_driver_is_not() -> None:
    """One kills at once, the other only keeps new work away (design, section 5)."""
    court = open_court()
    court.world.report = replace(SERVING, gpu=ev.Gpu.DRIVER_UNRESPONSIVE)
    court.run(5.0)
    assert (court.verdicts, court.judge.state, court.judge.weight) == ([], NodeState.SUSPECT, 0.0)
    court.world.report = replace(SERVING, gpu=ev.Gpu.TELEMETRY_LOST)
    court.run(1.0)
    assert (court.judge.state, court.judge.weight) == (NodeState.ALIVE, 1.0)
    court.world.report = replace(SERVING, gpu=ev.Gpu.LOST, gpu_detail="Xid 79")
    court.run(0.3)
    assert [(verdict.cause, verdict.proof) for verdict in court.verdicts] == [("gpu_lost", True)]


@EASY
@given(data=st.data())
def test_reports_delayed_by_a_bad_line_do_not_make_an_engine_stand(data: st.DataObject) -> None:
    """Each comes late by a time of its own; the engine is judged by its agent's clock."""
    court = used_to_probes(open_court(world=replace(STREAMING, report=ON_CPU, cpu_share=0.9, probe_after=None)))
    for _ in range(20):
        court.world.pong_after = data.draw(st.floats(0.001, 1.5))
        court.run(data.draw(st.floats(0.05, 0.5)))
    assert court.verdicts == []
