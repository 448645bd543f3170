"""Compares a client's token ids with those of an undisturbed run: what was lost, doubled or changed."""

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher


@dataclass(frozen=True, slots=True)
class Difference:
    """Tokens by which an answer differs from the reference."""

    lost: int = 0
    duplicated: int = 0
    """Tokens that are in the answer and not in the reference, repeats included."""
    mismatched: int = 0
    """Tokens that stand where another one should."""

    def __add__(self, other: "Difference") -> "Difference":
        """Add the differences of two answers up."""
        return Difference(
            self.lost + other.lost, self.duplicated + other.duplicated, self.mismatched + other.mismatched
        )

    @property
    def none(self) -> bool:
        """Whether the two are the same."""
        return not (self.lost or self.duplicated or self.mismatched)


def compare(reference: Sequence[int], answer: Sequence[int]) -> Difference:
    """Compare an answer's ids with the reference's."""
    lost = duplicated = mismatched = 0
    if list(reference) == list(answer):
        return Difference()
    for tag, ref_from, ref_to, got_from, got_to in SequenceMatcher(
        None, reference, answer, autojunk=False
    ).get_opcodes():
        expected, got = ref_to - ref_from, got_to - got_from
        if tag == "delete":
            lost += expected
        elif tag == "insert":
            duplicated += got
        elif tag == "replace":
            mismatched += min(expected, got)
            lost += max(expected - got, 0)
            duplicated += max(got - expected, 0)
    return Difference(lost, duplicated, mismatched)
