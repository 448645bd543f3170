"""An unproven death needs more than half of the living sentinels that watch the node."""

from hypothesis import given
from hypothesis import strategies as st

from detectors.ballot import Ballot
from detectors.evidence import Vote

HANG = Vote("hang", "counter still", took_s=0.4)
LINK = Vote("link", "3 pongs missed", took_s=0.2)


def test_one_of_two_is_not_enough() -> None:
    """The other one sees the node, or has not made up its mind."""
    ballot = Ballot()
    ballot.cast("s1", HANG, 10.0)
    assert ballot.result(("s1", "s2"), 10.1) is None


def test_two_of_two_elect_and_are_named_with_what_each_of_them_saw() -> None:
    """Their causes may differ; the primary's is the verdict's."""
    ballot = Ballot()
    ballot.cast("s2", LINK, 10.0)
    ballot.cast("s1", HANG, 10.1)
    elected = ballot.result(("s1", "s2"), 10.2)
    assert elected is not None
    assert elected.cause == "hang"
    assert elected.evidence == "2 of 2 sentinels: s1: hang: counter still; s2: link: 3 pongs missed"
    assert round(elected.took_s, 3) == 0.5


def test_a_vote_that_is_not_repeated_is_given_up() -> None:
    """The node answered that sentinel again."""
    ballot = Ballot()
    ballot.cast("s2", LINK, 10.0)
    ballot.cast("s1", LINK, 11.5)
    assert ballot.result(("s1", "s2"), 11.5) is None


def test_a_sentinel_that_is_gone_is_not_waited_for() -> None:
    """Once it is no watcher any more, the other's vote is the majority."""
    ballot = Ballot()
    ballot.cast("s1", LINK, 10.0)
    assert ballot.result(("s1",), 10.1) is not None


votes = st.lists(st.tuples(st.sampled_from("abcdefg"), st.floats(0, 5)), max_size=20)


@given(votes, st.lists(st.sampled_from("abcdefg"), min_size=1, max_size=5, unique=True))
def test_elected_is_exactly_what_more_than_half_of_the_watchers_said_within_a_second(
    given_votes: list[tuple[str, float]], watchers: list[str]
) -> None:
    """Whoever else voted, and however often."""
    ballot, last = Ballot(), dict[str, float]()
    for sentinel, at in sorted(given_votes, key=lambda vote: vote[1]):
        ballot.cast(sentinel, LINK, at)
        last[sentinel] = at
    standing = sum(5.0 - last[watcher] <= 1.0 for watcher in watchers if watcher in last)
    assert (ballot.result(watchers, 5.0) is not None) == (standing > len(watchers) / 2)
