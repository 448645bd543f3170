"""What counts as lost, duplicated and mismatched tokens."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.compare import Difference, compare

ids = st.lists(st.integers(0, 50_000), unique=True, min_size=4, max_size=60)


@given(ids)
def test_equal_answers_differ_in_nothing(reference: list[int]) -> None:
    """The same ids are no difference."""
    assert Difference() == compare(reference, list(reference))


@given(ids, st.data())
def test_a_cut_answer_has_lost_its_rest(reference: list[int], data: st.DataObject) -> None:
    """Each token missing at the end counts as lost."""
    cut = data.draw(st.integers(0, len(reference) - 1))
    assert Difference(lost=len(reference) - cut) == compare(reference, reference[:cut])


@given(ids, st.data())
def test_tokens_sent_twice_are_duplicated(reference: list[int], data: st.DataObject) -> None:
    """A stretch delivered again counts once per token."""
    at = data.draw(st.integers(1, len(reference)))
    again = data.draw(st.integers(1, at))
    assert Difference(duplicated=again) == compare(reference, reference[:at] + reference[at - again :])


def test_a_changed_token_is_a_mismatch() -> None:
    """Another token in the same place is neither lost nor doubled."""
    assert Difference(mismatched=1) == compare([1, 2, 3], [1, 9, 3])


def test_differences_add_up() -> None:
    """Several answers give one sum."""
    assert Difference(1, 2, 3) == Difference(1, 0, 3) + Difference(0, 2, 0)


@pytest.mark.parametrize("difference", [Difference(lost=1), Difference(duplicated=1), Difference(mismatched=1)])
def test_any_difference_is_not_none(difference: Difference) -> None:
    """`none` is True only without any difference."""
    assert not difference.none
