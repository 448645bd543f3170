"""The judgement: proof and confirmed silence kill, nothing else does."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detectors import evidence as ev
from detectors.docket import JUDGED
from detectors.evidence import Phase
from detectors.verdict import Judge
from recovery.registry import NodeState
from tests.unit.detectors.courtroom import BUSY, RULES, SERVING, Courtroom, World, open_court

EASY = settings(max_examples=60, deadline=None)
ON_CPU = replace(BUSY, computes_on_cpu=True)


@pytest.mark.parametrize("state", sorted(JUDGED))
def test_a_process_that_is_gone_is_dead_at_once(state: NodeState) -> None:
    """Proof needs no confirmation, whatever the state."""
    court = Courtroom(Judge(RULES, 1, state, 1_000.0))
    court.tell(ev.EngineDown(1, "process_exit", "pid 1 signal 9"))
    assert [ev.Dead("process_exit", "pid 1 signal 9", proof=True)] == court.verdicts
    assert NodeState.DEAD is court.judge.state


@pytest.mark.parametrize("state", sorted(set(NodeState) - JUDGED))
def test_a_node_in_other_hands_is_not_judged(state: NodeState) -> None:
    """While a job or an operator has the node, neither proof nor silence changes its state."""
    court = Courtroom(Judge(RULES, 1, state, 1_000.0), World(pong_after=None, status_after=None, probe_after=None))
    court.tell(ev.EngineDown(1, "process_exit", ""))
    court.tell(ev.LinkBroken("gone"))
    court.tell(ev.LeaseExpired())
    court.run(5.0)
    assert court.verdicts == []
    assert state is court.judge.state


def test_a_notice_of_an_old_epoch_is_ignored() -> None:
    """A zombie's obituary says nothing about its successor."""
    court = Courtroom(Judge(RULES, 7, NodeState.ALIVE, 1_000.0))
    court.tell(ev.EngineDown(6, "process_exit", ""))
    assert court.verdicts == []


def test_a_newer_epoch_is_looked_up() -> None:
    """A report of a newer epoch is for another judge."""
    court = open_court()
    court.tell(ev.Pong(10**6, 100.0, replace(SERVING, epoch=2, phase=Phase.DOWN)))
    assert ev.MovedOn(2) in [decision for _, decision in court.said]
    assert court.verdicts == []


@pytest.mark.parametrize(("phase", "cause"), [(Phase.DOWN, "process_exit"), (Phase.FAILED, "start_failed")])
def test_a_report_of_a_gone_engine_is_proof_even_without_a_notice(phase: Phase, cause: str) -> None:
    """The notice may have been lost with an earlier sentinel."""
    court = open_court()
    court.world.report = replace(SERVING, phase=phase, ready=False)
    court.run(0.3)
    assert [cause] == [verdict.cause for verdict in court.verdicts]


@EASY
@given(data=st.data())
def test_no_sequence_of_evidence_kills_a_node_that_works(data: st.DataObject) -> None:
    """It answers on one path at least, and moves whenever it gets the chance; everything else may go wrong."""
    court = open_court(world=World(report=ON_CPU, tokens_per_s=100, cpu_share=0.9))
    nuisance: st.SearchStrategy[ev.Evidence] = st.sampled_from(
        [
            ev.ProbeDue(),
            ev.UpstreamBroken(),
            ev.LeaseExpired(),
            ev.LeaseHeld(),
            ev.LinkBroken("reset"),
            ev.TokensSeen(0.1),
            ev.EngineDown(0, "process_exit", "an old epoch's"),
            ev.Elected("link", "others say so"),
        ]
    )
    for _ in range(data.draw(st.integers(1, 8))):
        court.tell(data.draw(nuisance))
        court.judge.blind = data.draw(st.booleans())
        court.judge.majority_needed = data.draw(st.booleans())
        chance = data.draw(st.sampled_from(["moves", "computes", "starved"]))
        link = data.draw(st.sampled_from(["good", "slow", "stream stuck", "agent starved"]))
        court.world = World(
            report=data.draw(st.sampled_from([ON_CPU, replace(ON_CPU, prefilling=1), replace(ON_CPU, waiting=1_000)])),
            tokens_per_s=data.draw(st.floats(5, 1_000)) if chance == "moves" else 0.0,
            engine_answers=chance == "moves",
            cpu_share=0.95 if chance == "computes" else 0.02,
            wait_share=0.93 if chance == "starved" else 0.0,
            pong_after={"good": 0.001, "slow": 0.3}.get(link),
            status_after=None if link == "agent starved" else 0.2,
            host_after=0.05,
            probe_after=data.draw(st.sampled_from([None, 0.1])),
        )
        court.run(data.draw(st.floats(0.02, 1.5)))
        court.sleep(data.draw(st.sampled_from([0.0, 0.0, 0.3, 20.0])))
        court.world = replace(court.world, tokens_per_s=100, engine_answers=True, pong_after=0.001, status_after=0.1)
        court.tell(ev.LinkUp())
        court.run(0.5)
    assert court.verdicts == []


@EASY
@given(state=st.sampled_from(sorted(JUDGED - {NodeState.STARTING, NodeState.SUSPECT})), rounds=st.integers(1, 40))
def test_a_4xx_changes_nothing(state: NodeState, rounds: int) -> None:
    """An engine that refuses our probe is neither better nor worse for it."""
    court = open_court(state, weight=0.5)
    court.world.probe_says = ev.ProbeNeutral("HTTP 400")
    court.judge.adopt(state, 0.5)
    for _ in range(rounds):
        court.tell(ev.ProbeDue())
        court.run(0.5)
    assert court.verdicts == []
    assert (state, 0.5) == (court.judge.state, court.judge.weight)


def test_refused_probes_count_only_where_one_ever_got_through() -> None:
    """An engine that this sentinel could never reach may just be behind the wrong address."""
    refused = ev.ProbeFailed("refused")
    stranger = Courtroom(Judge(RULES, 1, NodeState.ALIVE, 1_000.0, slots=4), World(probe_says=refused))
    for _ in range(5):
        stranger.tell(ev.ProbeDue())
        stranger.run(2.0)
    assert stranger.verdicts == []

    known = open_court()
    known.tell(ev.ProbeDue())
    known.run(1.0)
    known.world.probe_says = refused
    known.tell(ev.ProbeDue())
    known.run(2.0)
    assert [verdict.cause for verdict in known.verdicts] == ["unreachable"]


@EASY
@given(naps=st.lists(st.floats(1.2, 15.0), min_size=1, max_size=4), busy=st.booleans())
def test_the_sentinels_own_sleep_kills_nobody(naps: list[float], busy: bool) -> None:
    """Stopped for 15 s, it has seen nothing, so it concludes nothing."""
    court = open_court(world=World(report=BUSY if busy else SERVING, tokens_per_s=20))
    for nap in naps:
        court.tell(ev.ProbeDue())
        court.run(0.1)
        court.sleep(nap)
        court.run(2.0)
    assert court.verdicts == []
    assert len(naps) == court.judge.sleeps
    assert NodeState.ALIVE is court.judge.state


@pytest.mark.parametrize("nap", [0.9, 5.0])
def test_a_probe_that_was_late_only_because_we_slept_counts_for_nothing(nap: float) -> None:
    """The answer may have lain there all the time."""
    court = open_court()
    for _ in range(3):
        court.tell(ev.ProbeDue())
        court._due.clear()
        court.sleep(nap)
        court.tell(ev.ProbeLate())
        assert (court.verdicts, court.judge.state) == ([], NodeState.ALIVE)
        court.run(0.2)


def test_a_probe_under_way_while_we_slept_proves_nothing_even_later() -> None:
    """It was ordered before the sleep."""
    court = open_court()
    court.tell(ev.ProbeDue())
    court._due.clear()
    court.sleep(5.0)
    court.run(RULES.probe_deadline_s)
    court.tell(ev.ProbeLate())
    assert (court.verdicts, court.judge.state) == ([], NodeState.ALIVE)


def test_an_agent_that_stops_in_good_order_is_no_death() -> None:
    """STOPPING, then silence."""
    court = open_court()
    court.tell(ev.AgentStopping())
    court.stream_up = False
    court.tell(ev.LinkBroken("closed"))
    court.world = World(pong_after=None, status_after=None)
    court.run(5.0)
    assert court.verdicts == []
    assert NodeState.STOPPED is court.judge.state


def test_a_rejected_token_is_no_death() -> None:
    """An error in the settings, however long it lasts."""
    court = Courtroom(Judge(RULES, 1, NodeState.STARTING, 1_000.0), stream_up=False)
    court.tell(ev.LinkRejected())
    court.run(RULES.start_deadline_s + 5)
    assert court.verdicts == []


def test_a_start_has_its_own_deadline() -> None:
    """Loading for minutes is normal; loading for ever is a failed start."""
    loading = replace(SERVING, phase=Phase.STARTING, ready=False)
    court = Courtroom(Judge(RULES, 1, NodeState.STARTING, 1_000.0), World(report=loading))
    court.run(RULES.start_deadline_s - 5)
    assert court.verdicts == []
    court.run(10.0)
    assert [verdict.cause for verdict in court.verdicts] == ["start_failed"]


def test_a_fresh_start_takes_full_traffic_at_once() -> None:
    """No probation without a failure."""
    court = Courtroom(Judge(RULES, 1, NodeState.STARTING, 1_000.0))
    court.run(0.5)
    assert ev.ChangeState(NodeState.ALIVE, 1.0, "serves") in [decision for _, decision in court.said]


@EASY
@given(data=st.data())
def test_proof_ends_in_death_whatever_came_before(data: st.DataObject) -> None:
    """No history of evidence protects a process that is gone."""
    court = open_court(data.draw(st.sampled_from([NodeState.ALIVE, NodeState.PROBATION])))
    pieces: list[ev.Evidence] = [
        ev.ProbeDue(),
        ev.LeaseExpired(),
        ev.LinkBroken("x"),
        ev.LinkUp(),
        ev.TokensSeen(),
        ev.LinkRejected(),
    ]
    for _ in range(data.draw(st.integers(0, 12))):
        court.tell(data.draw(st.sampled_from(pieces)))
        court.judge.blind = data.draw(st.booleans())
        court.run(data.draw(st.floats(0.02, 0.6)))
    court.tell(ev.EngineDown(1, "process_exit", "gone"))
    assert len(court.verdicts) == 1
    assert NodeState.DEAD is court.judge.state


@EASY
@given(data=st.data())
def test_at_most_one_probe_and_one_direct_question_are_under_way(data: st.DataObject) -> None:
    """Each is answered before the next is ordered."""
    court = open_court(
        world=World(
            report=data.draw(st.sampled_from([BUSY, SERVING])),
            pong_after=data.draw(st.sampled_from([None, 0.001, 0.3])),
            probe_after=data.draw(st.sampled_from([None, 0.05])),
        )
    )
    nuisance: st.SearchStrategy[ev.Evidence] = st.sampled_from([ev.ProbeDue(), ev.UpstreamBroken(), ev.LeaseExpired()])
    for _ in range(10):
        court.tell(data.draw(nuisance))
        waiting = [entry for entry in court._due if isinstance(entry[1](), ev.ProbePassed | ev.ProbeLate)]
        direct = [e for e in court._due if isinstance(e[1](), ev.SecondPathAnswered | ev.SecondPathFailed)]
        assert len(waiting) <= 1
        assert len(direct) <= 1
        court.run(data.draw(st.floats(0.02, 0.5)))
