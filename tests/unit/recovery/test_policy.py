"""Where a request goes: properties that hold for every set of nodes."""

import math
import random
from collections import Counter
from collections.abc import Mapping
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recovery import policy
from recovery.registry import SERVING, Node, NodeState

MODEL = "m"
Draws = tuple[float, float, float]
_SHARE = st.floats(0, 1, exclude_max=True)
DRAWS = st.tuples(_SHARE, _SHARE, _SHARE)
POLICIES = st.sampled_from(get_args(policy.Policy))
_FIRST = (0.0, 0.0, 0.0)


@st.composite
def nodes(draw: st.DrawFn) -> list[Node]:
    """A small cluster with distinct names."""
    count = draw(st.integers(0, 6))
    return [
        Node(
            id=f"n{number}",
            state=draw(st.sampled_from(NodeState)),
            weight=draw(st.sampled_from([0.0, 0.01, 0.5, 1.0])),
            score=draw(st.floats(0, 500)),
            free_ratio=draw(st.floats(0, 1)),
            model=draw(st.sampled_from([MODEL, MODEL, "other"])),
            identity=draw(st.sampled_from(["i", "j"])),
            engine_url=draw(st.sampled_from(["http://e", "http://e", ""])),
            running=draw(st.integers(0, 20)),
            slots=draw(st.integers(0, 4)),
        )
        for number in range(count)
    ]


def able(node: Node) -> bool:
    """Whether a node may take traffic in the ordinary way."""
    proven = node.state in SERVING or node.state is NodeState.PROBATION
    return node.model == MODEL and bool(node.engine_url) and node.weight > 0 and proven


def test_the_score_weighs_round_trip_and_used_memory_as_promised() -> None:
    """0.7 × EWMA ms + 0.3 × 100 × (1 − free ratio)."""
    assert policy.score(10.0, 0.25, 0.7, 0.3) == 0.7 * 10.0 + 0.3 * 100.0 * 0.75


@given(rtt=st.floats(0, 1e4), more_rtt=st.floats(0, 1e4), free=st.floats(0, 1), more_free=st.floats(0, 1))
def test_the_score_never_rewards_a_slower_or_fuller_node(
    rtt: float, more_rtt: float, free: float, more_free: float
) -> None:
    """It grows with the round trip and falls with free memory."""
    assert policy.score(rtt, free, 0.7, 0.3) <= policy.score(rtt + more_rtt, free, 0.7, 0.3)
    assert policy.score(rtt, max(free, more_free), 0.7, 0.3) <= policy.score(rtt, min(free, more_free), 0.7, 0.3)


@given(cluster=nodes(), draws=DRAWS, how=POLICIES, full=st.floats(0, 1))
def test_a_dead_or_unweighted_node_is_never_chosen_while_another_is_able(
    cluster: list[Node], draws: Draws, how: policy.Policy, full: float
) -> None:
    """Nothing is sent to a node that is dead, leaves, starts, of another model or without an engine."""
    chosen = policy.choose(cluster, MODEL, inflight={}, draws=draws, min_free=full, policy=how)
    if any(able(node) for node in cluster):
        assert chosen is not None
        assert able(chosen)
    elif chosen is not None:
        assert (chosen.state, chosen.model, bool(chosen.engine_url)) == (NodeState.PROBATION, MODEL, True)


@given(cluster=nodes(), draws=DRAWS, how=POLICIES)
def test_a_node_below_the_free_limit_is_skipped_while_another_has_room(
    cluster: list[Node], draws: Draws, how: policy.Policy
) -> None:
    """Requirements B4: below 5 % free a node is skipped."""
    chosen = policy.choose(cluster, MODEL, inflight={}, draws=draws, min_free=0.05, policy=how)
    if any(able(node) and node.free_ratio >= 0.05 for node in cluster):
        assert chosen is not None
        assert chosen.free_ratio >= 0.05


@given(cluster=nodes(), draws=DRAWS, how=POLICIES, failed=st.sets(st.sampled_from(["n0", "n1", "n2"])))
def test_a_requests_failed_nodes_are_avoided_while_another_is_able(
    cluster: list[Node], draws: Draws, how: policy.Policy, failed: set[str]
) -> None:
    """A retry does not go back to what just failed, unless nothing else is left."""
    chosen = policy.choose(cluster, MODEL, inflight={}, draws=draws, min_free=0.0, policy=how, avoid=frozenset(failed))
    if any(able(node) and node.id not in failed for node in cluster):
        assert chosen is not None
        assert chosen.id not in failed


def test_the_lowest_score_wins_until_what_was_sent_to_it_weighs_more() -> None:
    """A quarter of the slots filled costs 7.5 points, and a whole batch outweighs any score."""
    near = Node("near", state=NodeState.ALIVE, weight=1.0, score=1.0, model=MODEL, engine_url="u", slots=4)
    far = Node("far", state=NodeState.ALIVE, weight=1.0, score=9.0, model=MODEL, engine_url="u", slots=4)
    distant = Node("distant", state=NodeState.ALIVE, weight=1.0, score=900.0, model=MODEL, engine_url="u", slots=4)

    def choose(load: int, other: Node) -> Node | None:
        return policy.choose([other, near], MODEL, inflight={"near": load}, draws=_FIRST, min_free=0.0)

    assert choose(1, far) == near
    assert choose(2, far) == far
    assert choose(3, distant) == near
    assert choose(4, distant) == distant


def test_requests_between_two_heartbeats_are_spread_over_equal_nodes() -> None:
    """Four requests at once on two idle nodes: two each."""
    pair = [
        Node(name, state=NodeState.ALIVE, weight=1.0, score=0.2, model=MODEL, engine_url="u", slots=4)
        for name in ("a", "b")
    ]
    inflight = {"a": 0, "b": 0}
    for _ in range(4):
        chosen = policy.choose(pair, MODEL, inflight=inflight, draws=_FIRST, min_free=0.0)
        assert chosen is not None
        inflight[chosen.id] += 1
    assert inflight == {"a": 2, "b": 2}


def test_a_ramping_node_takes_its_weights_share() -> None:
    """A draw below the weight lets it take part; above, it is as if it were not there."""
    full = Node("full", state=NodeState.ALIVE, weight=1.0, score=9.0, model=MODEL, engine_url="u")
    ramping = Node("ramping", state=NodeState.PROBATION, weight=0.1, score=1.0, model=MODEL, engine_url="u")
    assert policy.choose([full, ramping], MODEL, inflight={}, draws=(0.05, 0.0, 0.0), min_free=0.0) == ramping
    assert policy.choose([full, ramping], MODEL, inflight={}, draws=(0.5, 0.0, 0.0), min_free=0.0) == full


@pytest.mark.parametrize("how", get_args(policy.Policy))
def test_each_step_of_the_ramp_is_its_share_of_the_traffic_and_no_more(how: policy.Policy) -> None:
    """Requirements B6: 1 %, 2 %, … of the requests, though the recovering node is the emptiest and nearest of all."""
    chance = random.Random(7)
    busy = Node("busy", state=NodeState.ALIVE, weight=1.0, score=9.0, model=MODEL, engine_url="u", slots=4)
    total = 20_000
    for percent in (0, 1, 2, 3, 10, 50, 99):
        weight = percent / 100
        ramping = Node("r", state=NodeState.PROBATION, weight=weight, score=1.0, model=MODEL, engine_url="u", slots=4)
        chosen = [_at_random([busy, ramping], {}, how, chance) for _ in range(total)]
        # Five standard deviations: it fails for a wrong share, not for a rare draw.
        allowed = 5 * math.sqrt(total * weight * (1 - weight))
        assert abs(chosen.count("r") - total * weight) <= allowed, percent


@pytest.mark.parametrize("how", get_args(policy.Policy))
def test_equal_scores_are_told_apart_by_the_depth_of_the_queue(how: policy.Policy) -> None:
    """Less than a batch of difference, so that only the tie-break can see it."""
    short = Node("z", state=NodeState.ALIVE, weight=1.0, model=MODEL, engine_url="u", slots=8, running=1, waiting=1)
    long = Node("a", state=NodeState.ALIVE, weight=1.0, model=MODEL, engine_url="u", slots=8, running=2, waiting=1)
    chance = random.Random(1)
    assert {_at_random([long, short], {}, how, chance) for _ in range(50)} == {"z"}


def test_the_fastest_is_the_lowest_score_of_all_and_two_choices_the_lower_of_two() -> None:
    """Of five nodes, the worst is never taken by either, and all others now and then by two choices."""
    cluster = _five()
    chance = random.Random(3)
    assert {_at_random(cluster, {}, "fastest", chance) for _ in range(300)} == {"n0"}
    assert {_at_random(cluster, {}, "two_choices", chance) for _ in range(300)} == {"n0", "n1", "n2", "n3"}


def test_gateways_with_the_same_figures_do_not_herd_onto_one_node() -> None:
    """Ten gateways, two requests each between two heartbeats: all to one node by `fastest`, spread by two choices."""
    most = {}
    for how in get_args(policy.Policy):
        sent: Counter[str] = Counter()
        chance = random.Random(11)
        for _gateway in range(10):
            own: Counter[str] = Counter()  # what the others send, no gateway sees before the next heartbeat
            for _ in range(2):
                own[_at_random(_five(slots=64), own, how, chance)] += 1
            sent += own
        most[how] = max(sent.values())
    assert most["fastest"] == 20
    assert most["two_choices"] <= 12


def _five(slots: int = 4) -> list[Node]:
    return [
        Node(f"n{at}", state=NodeState.ALIVE, weight=1.0, score=1.0 + at, model=MODEL, engine_url="u", slots=slots)
        for at in range(5)
    ]


def _at_random(cluster: list[Node], inflight: Mapping[str, int], how: policy.Policy, chance: random.Random) -> str:
    draws = (chance.random(), chance.random(), chance.random())
    chosen = policy.choose(cluster, MODEL, inflight=inflight, draws=draws, min_free=0.0, policy=how)
    assert chosen is not None
    return chosen.id


@given(cluster=nodes(), tokens=st.integers(0, 10_000), left=st.none() | st.floats(0, 1e5))
def test_a_paused_request_never_goes_to_the_dead_node_and_always_takes_the_cheaper_route(
    cluster: list[Node], tokens: int, left: float | None
) -> None:
    """Peer or wait, whichever costs less; none only when there is neither."""
    route = policy.route(
        tokens, MODEL, "i", cluster, "n0", token_ms=1.0, restart_left_ms=left, load={}
    )  # fmt: skip
    if route.kind == "peer":
        assert route.node is not None
        assert route.node.id != "n0"
        assert left is None or route.estimate_ms <= left + tokens
    if route.kind == "wait":
        assert left is not None
    if route.kind == "none":
        assert left is None
        assert not any(able(node) for node in cluster if node.id != "n0")


def test_a_wave_of_paused_requests_is_spread_over_the_peers() -> None:
    """The requests already sent in this wave count as load."""
    peers = [
        Node(f"p{n}", state=NodeState.ALIVE, weight=1.0, model=MODEL, identity="i", engine_url="u", slots=2)
        for n in range(2)
    ]
    load = {"p0": 0, "p1": 0}
    for _ in range(8):
        route = policy.route(10, MODEL, "i", peers, "dead", token_ms=1.0, restart_left_ms=None, load=load)
        assert route.node is not None
        load[route.node.id] += 1
    assert load == {"p0": 4, "p1": 4}


def test_a_peer_of_the_same_identity_is_preferred_to_a_better_scored_stranger() -> None:
    """Exactness needs the same model revision and quantization."""
    same = Node("same", state=NodeState.ALIVE, weight=1.0, score=9.0, model=MODEL, identity="i", engine_url="u")
    other = Node("other", state=NodeState.ALIVE, weight=1.0, score=1.0, model=MODEL, identity="j", engine_url="u")
    route = policy.route(10, MODEL, "i", [other, same], "dead", token_ms=1.0, restart_left_ms=None, load={})
    assert route.node == same
