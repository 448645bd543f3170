"""What a sentinel is to a node: its primary or beside it, alone or one of several."""

import pytest

from detectors.rules import Rules
from detectors.seat import Seat, follows, inherits
from detectors.verdict import Judge
from recovery.config import Settings
from recovery.registry import Node, NodeState

RULES = Rules.of(Settings())


def judge(state: NodeState, weight: float) -> Judge:
    """Return a judge of epoch 1."""
    return Judge(RULES, 1, state, 0.0, weight=weight, slots=1)


def test_a_sentinel_alone_needs_nobody() -> None:
    """It is the primary of everything."""
    seat = Seat("s1", ("s1",))
    assert seat.primary
    assert not seat.majority_needed


def test_a_primary_stops_at_once_but_begins_only_when_it_has_read_what_the_last_one_wrote() -> None:
    """Two may both be none for a moment, never both be it for long."""
    seat = Seat("s1", ("s1", "s2"))
    seat.assign(("s2", "s1"))
    assert not seat.primary
    seat.assign(("s1", "s2"))
    assert seat.chosen
    assert not seat.primary


def test_one_that_does_not_count_never_decides_alone() -> None:
    """Blind, or having lost the node to others, it still watches."""
    assert Seat("s1", ("s2",)).majority_needed
    assert Seat("s1", ("s2", "s3")).majority_needed


@pytest.mark.parametrize(
    ("own", "written", "expected"),
    [
        ((NodeState.PROBATION, 0.2), (NodeState.PROBATION, 0.3), True),
        ((NodeState.ALIVE, 1.0), (NodeState.PROBATION, 0.9), True),
        ((NodeState.STARTING, 0.0), (NodeState.ALIVE, 1.0), True),
        ((NodeState.PROBATION, 0.0), (NodeState.PROBATION, 0.0), False),
        ((NodeState.SUSPECT, 1.0), (NodeState.ALIVE, 1.0), False),
        ((NodeState.ALIVE, 1.0), (NodeState.SUSPECT, 1.0), False),
        ((NodeState.ALIVE, 1.0), (NodeState.RECOVERING, 0.0), False),
    ],
)
def test_a_new_primary_inherits_steps_taken_but_keeps_its_own_doubts_and_its_own_clock(
    own: tuple[NodeState, float], written: tuple[NodeState, float], expected: bool
) -> None:
    """An equal probation goes on with the hold this sentinel has watched itself."""
    state, weight = written
    assert inherits(judge(*own), Node("a", epoch=1, state=state, weight=weight)) is expected


def test_a_longer_hold_is_inherited_by_a_probation_that_has_seen_fewer_failures() -> None:
    """What failed under the last primary counts under the next."""
    beside = judge(NodeState.PROBATION, 0.0)
    last = Node("a", epoch=1, state=NodeState.PROBATION, weight=0.0, hold_s=4 * RULES.probation.hold_s)
    assert inherits(beside, last)
    beside.adopt(last.state, last.weight, last.hold_s)
    assert beside.hold_s == last.hold_s


def test_a_judge_beside_the_primary_follows_steps_that_only_the_primary_decides() -> None:
    """Not its doubts, and not each step of weight."""
    alive = Node("a", epoch=1, state=NodeState.ALIVE, weight=1.0)
    assert follows(judge(NodeState.STARTING, 0.0), alive)
    assert follows(judge(NodeState.PROBATION, 0.9), alive)
    assert not follows(judge(NodeState.SUSPECT, 1.0), alive)
    assert not follows(judge(NodeState.PROBATION, 0.1), Node("a", epoch=1, state=NodeState.PROBATION, weight=0.2))
