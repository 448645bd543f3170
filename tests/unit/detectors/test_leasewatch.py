"""Which lease readings are news."""

from detectors.leasewatch import LeaseWatch, Reading
from recovery.registry import NodeState

GONE = Reading("a", 3, NodeState.ALIVE.value, -2)
HELD = Reading("a", 3, NodeState.ALIVE.value, 4_000)


def test_an_expiry_is_told_once() -> None:
    """Not at every look."""
    watch = LeaseWatch(5.0)
    assert watch.sort([GONE], 100.0)[0] == [GONE]
    assert watch.sort([GONE], 100.1)[0] == []


def test_an_expiry_is_announced_once_per_epoch_even_if_the_lease_flaps() -> None:
    """The judge hears of each, the stream of the first."""
    watch = LeaseWatch(5.0)
    watch.sort([GONE], 100.0)
    assert watch.to_publish(GONE)
    assert watch.sort([HELD], 101.0)[1] == [HELD]
    assert watch.sort([GONE], 107.0)[0] == [GONE]
    assert not watch.to_publish(GONE)


def test_leases_of_nodes_in_other_hands_do_not_matter() -> None:
    """A fence deletes the lease; so does an orderly stop."""
    watch = LeaseWatch(5.0)
    for state in (NodeState.RECOVERING, NodeState.STOPPED, NodeState.QUARANTINED):
        assert watch.sort([Reading("a", 3, state.value, -2)], 100.0)[0] == []


def test_nothing_is_concluded_until_agents_could_renew_after_redis_was_away() -> None:
    """Leases lapse while Redis is stopped; that is not the agents' fault."""
    watch = LeaseWatch(5.0)
    watch.away = True
    assert watch.sort([GONE], 100.0)[0] == []
    assert watch.sort([GONE], 104.9)[0] == []
    assert watch.sort([GONE], 105.1)[0] == [GONE]


def test_a_lease_is_looked_at_just_when_it_may_lapse() -> None:
    """Not ten times a second for as long as it is held, and yet not late."""
    watch = LeaseWatch(5.0)
    assert watch.due(["a"], 100.0) == ["a"]
    watch.sort([Reading("a", 3, "ALIVE", 4_000)], 100.0)
    assert watch.due(["a"], 100.2) == []
    watch.sort([Reading("a", 3, "ALIVE", 40)], 100.5)
    assert watch.due(["a"], 100.539) == []
    assert 0.04 <= watch.pause_s(["a"], 100.5) < 0.05
    assert watch.due(["a"], 100.55) == ["a"]


def test_most_leases_gone_together_are_more_likely_redis_fault() -> None:
    """Three of four within a second: nothing is concluded until they could be renewed; then each is news again."""
    watch = LeaseWatch(5.0)
    nodes = "abcd"
    watch.sort([Reading(node, 1, "ALIVE", 4_000) for node in nodes], 100.0)
    gone = [Reading(node, 1, "ALIVE", -2) for node in nodes[:3]]
    assert watch.any_lost(gone)
    assert watch.sort(gone, 100.1)[0] == []
    assert watch.vanished(100.1)
    assert watch.vanished(105.0)
    assert watch.sort(gone, 105.2)[0] == gone
    assert not watch.vanished(105.2)


def test_one_lease_gone_among_others_that_are_held_is_news_at_once() -> None:
    """And so are two that go long after each other."""
    watch = LeaseWatch(5.0)
    watch.sort([Reading(node, 1, "ALIVE", 4_000) for node in "abcd"], 100.0)
    assert watch.sort([Reading("a", 1, "ALIVE", -2)], 100.1)[0] != []
    assert watch.sort([Reading("b", 1, "ALIVE", -2)], 103.0)[0] != []
    assert watch.sort([Reading("c", 1, "ALIVE", -2)], 106.0)[0] != []
    assert not watch.vanished(106.0)


def test_leases_that_end_with_their_nodes_vanish_from_nobody() -> None:
    """Fences delete them, and orderly stops."""
    watch = LeaseWatch(5.0)
    watch.sort([Reading(node, 1, "ALIVE", 4_000) for node in "abc"], 100.0)
    watch.sort([Reading(node, 2, "RECOVERING", -2) for node in "abc"], 100.1)
    assert not watch.vanished(100.1)
