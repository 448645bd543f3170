"""Every sentinel knows who watches which node, without asking; a change moves little."""

from collections import Counter
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from detectors.sharing import watchers

NODES = [f"node-{number}" for number in range(300)]

EASY = settings(max_examples=50, deadline=None)
names = st.lists(st.text(min_size=1, max_size=12), min_size=1, max_size=8, unique=True)


def shares(sentinels: list[str], count: int = 2) -> dict[str, tuple[str, ...]]:
    """Return each node's watchers."""
    return {node: watchers(node, sentinels, count) for node in NODES}


@EASY
@given(names, st.integers(1, 5), st.randoms())
def test_all_sentinels_agree_whatever_order_they_know_each_other_in(
    sentinels: list[str], count: int, random: Random
) -> None:
    """No two of them may both hold themselves for a node's primary."""
    shuffled = list(sentinels)
    random.shuffle(shuffled)
    assert shares(sentinels, count) == shares(shuffled, count)
    assert all(len(set(some)) == len(some) == min(count, len(sentinels)) for some in shares(sentinels, count).values())


@EASY
@given(names)
def test_shares_are_even(sentinels: list[str]) -> None:
    """Six standard deviations of a fair draw."""
    watched = Counter(watcher for some in shares(sentinels).values() for watcher in some)
    first = Counter(some[0] for some in shares(sentinels).values())
    for sentinel in sentinels:
        assert abs(watched[sentinel] - fair(min(2, len(sentinels)), len(sentinels))) <= spread(len(sentinels))
        assert abs(first[sentinel] - fair(1, len(sentinels))) <= spread(len(sentinels))


def fair(count: int, sentinels: int) -> float:
    """Return an even share of the nodes."""
    return len(NODES) * count / sentinels


def spread(sentinels: int) -> float:
    """Return how far a share may be off; nothing, where there is nothing to draw."""
    return 0.0 if sentinels == 1 else 6 * (len(NODES) / 4) ** 0.5


@EASY
@given(names, st.text(min_size=1, max_size=12))
def test_one_that_joins_takes_only_what_it_now_watches_itself(sentinels: list[str], joins: str) -> None:
    """Nobody else's nodes change hands; one that leaves is the same, seen backwards."""
    if joins in sentinels:
        return
    before, after = shares(sentinels), shares([*sentinels, joins])
    for node in NODES:
        if joins not in after[node]:
            assert after[node] == before[node]
        else:
            assert [name for name in after[node] if name != joins] == list(before[node])[: len(after[node]) - 1]
