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
from tests.unit.detectors.courtroom import BUSY, RULES, SERVING, STEP, Courtroom, World, open_court

EASY = settings(max_examples=60, deadline=None)
LINK_BOUND = (
    RULES.ping_interval_s
    + RULES.pong_deadline_s
    + max((RULES.fail_threshold - 1) * RULES.confirm_interval_s, 2 * RULES.second_path_s)
    + RULES.second_path_s
    + 10 * STEP
)
"""Last pong to verdict: the next ping, its deadline, then both paths; a direct call may just have been answered."""


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
@given(
    misses_before=st.floats(0, 3),
    busy=st.booleans(),
    state=st.sampled_from([NodeState.ALIVE, NodeState.PROBATION]),
    weight=st.sampled_from([0.0, 0.5, 1.0]),
)
def test_silence_on_both_paths_ends_in_death_within_its_bound(
    misses_before: float, busy: bool, state: NodeState, weight: float
) -> None:
    """From the last pong on, whatever the moment."""
    court = open_court(state, World(report=BUSY if busy else SERVING, tokens_per_s=50), weight)
    court.run(misses_before)
    court.world = replace(court.world, pong_after=None, status_after=None)
    took = court.run(10.0, until=lambda: bool(court.verdicts))
    assert [verdict.cause for verdict in court.verdicts] == ["link"]
    assert took <= LINK_BOUND


def test_a_second_path_that_was_asked_before_a_sign_of_life_proves_nothing() -> None:
    """Its silence is older than the pong; the next one must be asked anew."""
    court = open_court()
    court.world.pong_after = None
    court.run(1.0, until=lambda: any(isinstance(decision, ev.Confirm) for _, decision in court.said))
    court._due.clear()
    court.tell(ev.Pong(10**6, 1_000.0, SERVING))
    court.world.status_after = None
    court.run(0.1)
    court.tell(ev.SecondPathFailed("silent"))
    court.run(RULES.second_path_s / 2)
    assert court.judge.misses >= RULES.fail_threshold
    assert court.verdicts == []
    court.run(2.0)
    assert [verdict.cause for verdict in court.verdicts] == ["link"]


def test_a_broken_stream_with_a_refused_second_path_kills_at_once() -> None:
    """Nothing listens there any more."""
    court = open_court()
    court.stream_up = False
    court.tell(ev.LinkBroken("connection reset"))
    court.tell(ev.SecondPathFailed("connection refused"))
    assert [(verdict.cause, verdict.proof) for verdict in court.verdicts] == [("link", False)]


def test_a_broken_stream_with_an_answering_second_path_kills_nobody() -> None:
    """A stream may break by itself."""
    court = open_court()
    court.stream_up = False
    for _ in range(20):
        court.tell(ev.LinkBroken("reset"))
        court.run(0.5)
    assert court.verdicts == []
    states = [court.judge.state]
    court.stream_up = True
    court.tell(ev.LinkUp())
    court.run(0.5)
    assert [*states, court.judge.state] == [NodeState.SUSPECT, NodeState.ALIVE]


def test_a_stream_that_stays_mute_beside_a_living_agent_is_opened_again() -> None:
    """Pongs missing for good while direct calls are answered: the stream is at fault."""
    court = open_court()
    court.world.pong_after = None
    court.run(4.0)
    assert court.verdicts == []
    assert ev.Reconnect() in [decision for _, decision in court.said]


@EASY
@given(delay=st.floats(0.001, 0.9))
def test_slow_pongs_are_learned_not_punished(delay: float) -> None:
    """A sudden delay costs at most some direct questions; the deadline then follows the link."""
    court = open_court()
    court.world.pong_after = delay
    court.run(15.0)
    court.said.clear()
    court.run(5.0)
    assert [d for _, d in court.said if isinstance(d, ev.Confirm)] == []
    assert court.verdicts == []
    assert NodeState.ALIVE is court.judge.state


def test_a_miss_quickens_the_pings() -> None:
    """The confirm cadence comes with the first miss and goes with the next pong."""
    court = open_court()
    assert RULES.ping_interval_s == court.judge.ping_interval_s
    court.world.pong_after = None
    court.run(1.0, until=lambda: court.judge.misses > 0)
    assert RULES.confirm_interval_s == court.judge.ping_interval_s
    court.world.pong_after = 0.001
    court.run(0.2)
    assert RULES.ping_interval_s == court.judge.ping_interval_s


@EASY
@given(data=st.data())
def test_a_node_that_works_and_answers_never_dies(data: st.DataObject) -> None:
    """Pongs in time and moving counters outweigh late probes, lost leases and mute second paths."""
    court = open_court(world=World(report=BUSY, tokens_per_s=100, probe_after=None, status_after=None))
    nuisance: st.SearchStrategy[ev.Evidence] = st.sampled_from(
        [
            ev.ProbeDue(),
            ev.UpstreamBroken(),
            ev.LeaseExpired(),
            ev.LeaseHeld(),
            ev.LinkUp(),
            ev.TokensSeen(),
            ev.EngineDown(0, "process_exit", "an old epoch's"),
        ]
    )
    for _ in range(data.draw(st.integers(1, 30))):
        court.tell(data.draw(nuisance))
        court.world.tokens_per_s = data.draw(st.floats(5, 1_000))
        court.run(data.draw(st.floats(0.02, 1.5)))
    assert court.verdicts == []


@EASY
@given(probe_after=st.floats(0.01, 0.9), seconds=st.floats(1, 30))
def test_a_still_counter_with_own_tokens_in_time_never_kills(probe_after: float, seconds: float) -> None:
    """The engine makes tokens for us: it is not stuck, whatever its counters say."""
    court = open_court(world=World(report=BUSY, probe_after=probe_after))
    court.run(seconds)
    assert court.verdicts == []


def test_an_engine_stuck_under_load_is_dead_within_stall_and_probe_deadline() -> None:
    """Counter still with work pending, then no token of our own."""
    court = open_court(world=World(report=BUSY, tokens_per_s=50))
    court.world = replace(court.world, tokens_per_s=0, probe_after=None)
    took = court.run(10.0, until=lambda: bool(court.verdicts))
    assert [verdict.cause for verdict in court.verdicts] == ["hang"]
    load = 1 + BUSY.running / 4
    assert took <= RULES.stall_s + RULES.probe_deadline_s * load + 0.3
    assert NodeState.SUSPECT in [d.state for _, d in court.said if isinstance(d, ev.ChangeState)]


def test_a_late_probe_beside_a_moving_counter_means_busy() -> None:
    """A saturated engine is slow to us, not stuck."""
    court = open_court(world=World(report=BUSY, tokens_per_s=5, probe_after=None))
    for _ in range(10):
        court.tell(ev.ProbeDue())
        court.run(4.0)
    assert court.verdicts == []


def test_an_idle_engine_that_hangs_is_dead_after_two_late_probes() -> None:
    """Idle, there is no counter to see; the second probe follows at once."""
    court = open_court(world=World(probe_after=None))
    court.tell(ev.ProbeDue())
    took = court.run(10.0, until=lambda: bool(court.verdicts))
    assert [verdict.cause for verdict in court.verdicts] == ["hang"]
    assert 2 * RULES.probe_deadline_s - STEP <= took <= 2 * RULES.probe_deadline_s + 0.3


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
    stranger = open_court(world=World(probe_says=refused))
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


def test_an_expired_lease_kills_only_after_silent_status_calls() -> None:
    """Two direct questions, both unanswered."""
    court = open_court()
    court.stream_up = False
    court.tell(ev.LeaseExpired())
    court.run(5.0)
    assert court.verdicts == []

    court.world.status_after = None
    court.tell(ev.LeaseExpired())
    court.run(5.0, until=lambda: bool(court.verdicts))
    assert [verdict.cause for verdict in court.verdicts] == ["lease"]
    assert "2 status calls" in court.verdicts[0].evidence


def test_a_blind_sentinel_concludes_nothing_but_believes_proof() -> None:
    """Silence waits; a proven death does not."""
    court = open_court()
    court.judge.blind = True
    court.world = World(pong_after=None, status_after=None, probe_after=None)
    court.run(10.0)
    assert court.verdicts == []
    held = [decision for _, decision in court.said if isinstance(decision, ev.Held)]
    assert 1 <= len(held) <= 12
    court.tell(ev.EngineDown(1, "process_exit", ""))
    assert [verdict.cause for verdict in court.verdicts] == ["process_exit"]


def test_silence_that_outlasts_blindness_still_kills() -> None:
    """What was held back is judged anew, not forgotten."""
    court = open_court()
    court.judge.blind = True
    court.world = World(pong_after=None, status_after=None)
    court.run(5.0)
    court.judge.blind = False
    court.run(5.0, until=lambda: bool(court.verdicts))
    assert [verdict.cause for verdict in court.verdicts] == ["link"]


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


def test_a_withdrawn_verdict_is_reached_again_only_by_new_evidence() -> None:
    """A verdict that could not be published in time counts for nothing later."""
    court = open_court()
    court.world = World(pong_after=None, status_after=None)
    court.run(5.0, until=lambda: bool(court.verdicts))
    court.judge.withdraw()
    court.world = World()
    court.run(5.0)
    assert len(court.verdicts) == 1
    assert NodeState.ALIVE is court.judge.state


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
