"""Where a request goes: properties that hold for every set of nodes."""

from hypothesis import given
from hypothesis import strategies as st

from recovery import policy
from recovery.registry import SERVING, Node, NodeState

MODEL = "m"


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


@given(cluster=nodes(), draw=st.floats(0, 1, exclude_max=True), full=st.floats(0, 1))
def test_a_dead_or_unweighted_node_is_never_chosen_while_another_is_able(
    cluster: list[Node], draw: float, full: float
) -> None:
    """Nothing is sent to a node that is dead, fenced, of another model or without an engine."""
    chosen = policy.choose(cluster, MODEL, inflight={}, draw=draw, min_free=full)
    if any(able(node) for node in cluster):
        assert chosen is not None
        assert able(chosen)
    elif chosen is not None:
        assert (chosen.state, chosen.model, bool(chosen.engine_url)) == (NodeState.PROBATION, MODEL, True)


@given(cluster=nodes(), draw=st.floats(0, 1, exclude_max=True))
def test_a_node_below_the_free_limit_is_skipped_while_another_has_room(cluster: list[Node], draw: float) -> None:
    """Requirements B4: below 5 % free a node is skipped."""
    chosen = policy.choose(cluster, MODEL, inflight={}, draw=draw, min_free=0.05)
    if any(able(node) and node.free_ratio >= 0.05 for node in cluster):
        assert chosen is not None
        assert chosen.free_ratio >= 0.05


@given(cluster=nodes(), draw=st.floats(0, 1, exclude_max=True), failed=st.sets(st.sampled_from(["n0", "n1", "n2"])))
def test_a_requests_failed_nodes_are_avoided_while_another_is_able(
    cluster: list[Node], draw: float, failed: set[str]
) -> None:
    """A retry does not go back to what just failed, unless nothing else is left."""
    chosen = policy.choose(cluster, MODEL, inflight={}, draw=draw, min_free=0.0, avoid=frozenset(failed))
    if any(able(node) and node.id not in failed for node in cluster):
        assert chosen is not None
        assert chosen.id not in failed


def test_the_lowest_score_wins_until_what_was_sent_to_it_weighs_more() -> None:
    """A quarter of the slots filled costs 7.5 points, and a whole batch outweighs any score."""
    near = Node("near", state=NodeState.ALIVE, weight=1.0, score=1.0, model=MODEL, engine_url="u", slots=4)
    far = Node("far", state=NodeState.ALIVE, weight=1.0, score=9.0, model=MODEL, engine_url="u", slots=4)
    distant = Node("distant", state=NodeState.ALIVE, weight=1.0, score=900.0, model=MODEL, engine_url="u", slots=4)

    def choose(load: int, other: Node) -> Node | None:
        return policy.choose([other, near], MODEL, inflight={"near": load}, draw=0.0, min_free=0.0)

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
        chosen = policy.choose(pair, MODEL, inflight=inflight, draw=0.0, min_free=0.0)
        assert chosen is not None
        inflight[chosen.id] += 1
    assert inflight == {"a": 2, "b": 2}


def test_a_ramping_node_takes_its_weights_share() -> None:
    """A draw below the weight lets it take part; above, it is as if it were not there."""
    full = Node("full", state=NodeState.ALIVE, weight=1.0, score=9.0, model=MODEL, engine_url="u")
    ramping = Node("ramping", state=NodeState.PROBATION, weight=0.1, score=1.0, model=MODEL, engine_url="u")
    assert policy.choose([full, ramping], MODEL, inflight={}, draw=0.05, min_free=0.0) == ramping
    assert policy.choose([full, ramping], MODEL, inflight={}, draw=0.5, min_free=0.0) == full


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
