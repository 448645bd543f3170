"""Silence: of the stream, of the host, of the agent, of the lease; one alone proves nothing (requirements B2, D3)."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detectors import evidence as ev
from recovery.registry import NodeState
from tests.unit.detectors.courtroom import BUSY, RULES, SERVING, STEP, Courtroom, World, open_court

EASY = settings(max_examples=60, deadline=None)
LINK_BOUND = (
    RULES.ping_interval_s
    + (RULES.fail_threshold - 1) * RULES.confirm_interval_s
    + RULES.pong_deadline_s
    + (RULES.fail_threshold + 2) * STEP
)
"""Last pong to verdict: the next ping, two more in quick succession, and the deadline of the last (requirements B2)."""
SILENT = World(pong_after=None, host_after=None, status_after=None)
STOPPED = World(pong_after=None, status_after=None)
"""The host's kernel takes connections, the agent does nothing."""


@EASY
@given(
    before=st.floats(0, 3),
    busy=st.booleans(),
    state=st.sampled_from([NodeState.ALIVE, NodeState.PROBATION]),
    weight=st.sampled_from([0.0, 0.5, 1.0]),
)
def test_a_link_silent_on_both_paths_is_dead_within_its_bound(
    before: float, busy: bool, state: NodeState, weight: float
) -> None:
    """From the last pong on, whatever the moment."""
    court = open_court(state, World(report=BUSY if busy else SERVING, tokens_per_s=50), weight)
    court.run(before)
    court.world = replace(court.world, pong_after=None, host_after=None, status_after=None)
    took = court.run(10.0, until=lambda: bool(court.verdicts))
    assert [verdict.cause for verdict in court.verdicts] == ["link"]
    assert took <= LINK_BOUND
    assert 0 < court.verdicts[0].took_s <= took


@EASY
@given(rtt=st.floats(0.05, 0.11), data=st.data())
def test_a_distant_link_lives_and_dies_by_its_own_measure(rtt: float, data: st.DataObject) -> None:
    """80 ms ± 30 ms: no pong is missed once it is known, and silence still ends in death (default settings)."""
    court = open_court(world=World(host_after=rtt, status_after=3 * rtt))
    for _ in range(60):
        court.world.pong_after = data.draw(st.floats(0.05, 0.11))
        court.run(0.1)
    assert court.verdicts == []
    assert court.judge.misses == 0
    court.world = replace(court.world, pong_after=None, host_after=None, status_after=None)
    took = court.run(10.0, until=lambda: bool(court.verdicts))
    assert [verdict.cause for verdict in court.verdicts] == ["link"]
    assert took <= 1.0


def test_an_agent_that_is_stopped_beside_a_good_link_gets_patience_then_dies() -> None:
    """Its host answers, so the link is good; it may be starved, but not for ever."""
    court = open_court()
    court.world = STOPPED
    took = court.run(10.0, until=lambda: bool(court.verdicts))
    assert [verdict.cause for verdict in court.verdicts] == ["agent"]
    assert "its host answers" in court.verdicts[0].evidence
    assert RULES.agent_patience_s <= took <= RULES.agent_patience_s + 2.0


@EASY
@given(starved_s=st.floats(0.1, 1.8), times=st.integers(1, 4))
def test_an_agent_that_is_starved_for_a_while_lives(starved_s: float, times: int) -> None:
    """Nobody dies because its agent got no CPU."""
    court = open_court()
    for _ in range(times):
        court.world = STOPPED
        court.run(starved_s)
        court.world = World()
        court.run(1.0)
    assert court.verdicts == []
    assert NodeState.ALIVE is court.judge.state


@EASY
@given(data=st.data())
def test_lost_packets_kill_nobody_while_some_get_through(data: st.DataObject) -> None:
    """The stream stands still again and again, but the host takes one of many fresh connections."""
    court = open_court()
    for _ in range(10):
        court.world.pong_after = None
        court.world.host_after = data.draw(st.floats(0.001, 0.08))
        court.world.status_after = data.draw(st.sampled_from([None, 0.3]))
        court.run(data.draw(st.floats(0.1, 1.5)))
        court.world.pong_after = data.draw(st.floats(0.001, 0.4))
        court.run(data.draw(st.floats(0.6, 1.0)))
    assert court.verdicts == []


def test_an_answer_of_the_host_does_not_protect_a_link_that_fails_later() -> None:
    """It is asked again while pongs are missing."""
    court = open_court()
    court.world = STOPPED
    court.run(0.5)
    court.world = SILENT
    took = court.run(5.0, until=lambda: bool(court.verdicts))
    assert [verdict.cause for verdict in court.verdicts] == ["link"]
    assert took <= 1.0


def test_a_node_whose_tokens_arrive_elsewhere_is_not_dead_only_unseen_from_here() -> None:
    """Gateways still receive from it: the way from this sentinel is at fault."""
    court = open_court()
    court.world = SILENT
    for _ in range(20):
        court.tell(ev.TokensSeen(0.02))
        court.run(0.1)
    assert court.verdicts == []
    assert NodeState.SUSPECT is court.judge.state
    took = court.run(5.0, until=lambda: bool(court.verdicts))  # tokens stop as well
    assert [verdict.cause for verdict in court.verdicts] == ["link"]
    assert took <= 1.5


def test_tokens_from_before_the_silence_protect_nobody() -> None:
    """They had left the engine when the link still worked."""
    court = open_court()
    court.world = SILENT
    court.tell(ev.TokensSeen(0.01))
    took = court.run(10.0, until=lambda: bool(court.verdicts))
    assert [verdict.cause for verdict in court.verdicts] == ["link"]
    assert took <= LINK_BOUND


def test_a_host_that_answered_before_a_sign_of_life_proves_nothing() -> None:
    """Its silence is older than the pong; it must be asked anew."""
    court = open_court()
    court.world = replace(SILENT)
    court.run(1.0, until=lambda: any(isinstance(decision, ev.Knock) for _, decision in court.said))
    court._due.clear()
    court.tell(ev.Pong(10**6, 1_000.0, SERVING))
    court.tell(ev.HostSilent("no connection"))
    assert court.verdicts == []
    court.run(2.0, until=lambda: bool(court.verdicts))
    assert [verdict.cause for verdict in court.verdicts] == ["link"]


def test_a_broken_stream_and_a_host_that_refuses_kill_at_once() -> None:
    """Nothing listens there any more, and nothing was running."""
    court = open_court()
    court.world.host_refuses = True
    court.stream_up = False
    court._due.clear()
    court.tell(ev.LinkBroken("connection reset"))
    took = court.run(2.0, until=lambda: bool(court.verdicts))
    assert [(verdict.cause, verdict.proof) for verdict in court.verdicts] == [("link", False)]
    assert took <= 3 * STEP


def test_an_agent_that_is_gone_under_a_streaming_engine_may_come_back() -> None:
    """Tokens still come: the engine needs no agent to go on, and the next agent adopts it."""
    court = open_court()
    court.tell(ev.TokensSeen(0.02))
    court.world = World(host_refuses=True, status_after=None)
    court.stream_up = False
    court.tell(ev.LinkBroken("connection reset"))
    for _ in range(15):
        court.tell(ev.TokensSeen(0.02))
        court.run(0.1)
    assert court.verdicts == []
    court.stream_up, court.world = True, World()
    court.tell(ev.LinkUp())
    court.run(0.5)
    assert NodeState.ALIVE is court.judge.state


def test_a_broken_stream_with_an_answering_agent_kills_nobody() -> None:
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
    assert [d for _, d in court.said if isinstance(d, ev.Knock | ev.Confirm)] == []
    assert court.verdicts == []
    assert NodeState.ALIVE is court.judge.state


def test_a_pong_later_than_usual_quickens_the_pings_before_it_is_missed() -> None:
    """The confirm cadence comes with the first doubt and goes with the next pong."""
    court = open_court()
    assert RULES.ping_interval_s == court.judge.ping_interval_s
    court.world.pong_after = None
    court.run(1.0, until=lambda: court.judge.ping_interval_s == RULES.confirm_interval_s)
    assert court.judge.misses == 0
    court.world.pong_after = 0.001
    court.run(0.2)
    assert RULES.ping_interval_s == court.judge.ping_interval_s


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


def test_a_node_whose_agent_cannot_renew_its_lease_gets_no_new_work() -> None:
    """It lives and goes on with what it has; weight and state come back with the lease."""
    court = open_court()
    court.world.report = replace(SERVING, lease_held=False)
    court.tell(ev.LeaseExpired())
    court.run(3.0)
    assert court.verdicts == []
    assert (court.judge.state, court.judge.weight) == (NodeState.SUSPECT, 0.0)
    court.world.report = SERVING
    court.tell(ev.LeaseHeld())
    court.run(0.5)
    assert (court.judge.state, court.judge.weight) == (NodeState.ALIVE, 1.0)


def test_a_blind_sentinel_takes_no_work_away_for_a_missing_lease() -> None:
    """While Redis is away nobody can renew."""
    court = open_court()
    court.judge.blind = True
    court.world.report = replace(SERVING, lease_held=False)
    court.tell(ev.LeaseExpired())
    court.run(3.0)
    assert court.judge.weight == 1.0


def test_a_blind_sentinel_concludes_nothing_but_believes_proof() -> None:
    """Silence waits; a proven death does not."""
    court = open_court()
    court.judge.blind = True
    court.world = replace(SILENT, probe_after=None)
    court.run(10.0)
    assert court.verdicts == []
    held = [decision for _, decision in court.said if isinstance(decision, ev.Held)]
    assert 1 <= len(held) <= 100
    court.tell(ev.EngineDown(1, "process_exit", ""))
    assert [verdict.cause for verdict in court.verdicts] == ["process_exit"]


def test_silence_that_outlasts_blindness_still_kills() -> None:
    """What was held back is judged anew, not forgotten."""
    court = open_court()
    court.judge.blind = True
    court.world = SILENT
    court.run(5.0)
    court.judge.blind = False
    court.run(5.0, until=lambda: bool(court.verdicts))
    assert [verdict.cause for verdict in court.verdicts] == ["link"]


def test_a_withdrawn_verdict_is_reached_again_only_by_new_evidence() -> None:
    """A verdict that could not be published in time counts for nothing later."""
    court = open_court()
    court.world = SILENT
    court.run(5.0, until=lambda: bool(court.verdicts))
    court.judge.withdraw()
    court.world = World()
    court.run(5.0)
    assert len(court.verdicts) == 1
    assert NodeState.ALIVE is court.judge.state


@pytest.mark.parametrize("agreed", [True, False])
def test_where_others_must_agree_silence_is_a_vote(agreed: bool) -> None:
    """Repeated as long as it stands, and a death only once most agree."""
    court = open_court()
    court.judge.majority_needed = True
    court.world = SILENT
    court.run(1.0)
    votes = [decision for _, decision in court.said if isinstance(decision, ev.Vote)]
    assert court.verdicts == []
    assert {vote.cause for vote in votes} == {"link"}
    assert 3 <= len(votes) <= 6
    if not agreed:  # and an outvoted sentinel that hears a pong withdraws
        court.world = World()
        court.run(0.6)
    court.tell(ev.Elected("link", "2 of 2 sentinels"))
    assert [verdict.cause for verdict in court.verdicts] == (["link"] if agreed else [])


def test_proof_needs_no_votes() -> None:
    """The process is gone, whoever says so first."""
    court = Courtroom(open_court().judge)
    court.judge.majority_needed = True
    court.tell(ev.EngineDown(1, "process_exit", "signal 9"))
    assert [verdict.proof for verdict in court.verdicts] == [True]
