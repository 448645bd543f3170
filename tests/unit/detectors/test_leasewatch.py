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
