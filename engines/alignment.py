"""Alignment: which token ids end exactly where the delivered text ends, although llama.cpp withholds some.

Pure: the adapter feeds it events and answers its two questions (pieces of ids, ids of a text).

llama.cpp sends text only at whole characters and past possible stop strings. While a character is
incomplete it sends nothing and afterwards only the last id (``tokens_predicted`` jumps further than
``tokens`` is long); while a stop string is in doubt it sends ids with empty text. Such a stretch is a
*run*: it is kept until ids and text can be shown to match, then given out at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

MAX_TRIES = 8
"""Vain tries after which a run is given up: what did not match by then (an odd split) will not."""
MAX_TEXT = 2000
"""Characters of a run after which it is given up."""


@dataclass(slots=True)
class Run:
    """Text and ids since the last boundary at which both were known to agree."""

    text: str = ""
    count: int = 0
    """Ids the engine generated in it, known and withheld."""
    known: dict[int, int] = field(default_factory=dict)
    """Ids by position in the run."""
    tries: int = 0

    @property
    def complete(self) -> bool:
        """Whether no id is withheld."""
        return len(self.known) == self.count

    @property
    def ids(self) -> tuple[int, ...]:
        """The ids in order; of use only when complete."""
        return tuple(self.known[position] for position in sorted(self.known))


class Alignment:
    """The ids of one answer; one instance per attempt.

    ``strict`` checks each id's text as well: a stop string may cut a token in two at the very end.
    """

    __slots__ = ("_predicted", "_strict", "hopeless", "run")

    def __init__(self, *, strict: bool) -> None:
        self._predicted = 0
        self._strict = strict
        self.run: Run | None = None
        self.hopeless = False

    def feed(self, text: str, ids: Sequence[int], predicted: int) -> bool:
        """Take one event; True when its ids simply belong to its text, else it has become part of `run`."""
        new, self._predicted = predicted - self._predicted, predicted
        if self.run is None:
            if text and new == len(ids) and not self._strict:
                return True
            self.run = Run()
        run = self.run
        run.text += text
        run.count += new
        # What is withheld comes first: the ids sent are the last ones.
        run.known.update(zip(range(run.count - len(ids), run.count), ids, strict=True))
        return False

    def accept_pieces(self, pieces: Sequence[str]) -> tuple[int, ...] | None:
        """Return the complete run's ids if ``pieces``, their texts, make up its text; ends the run then."""
        run = self.run
        if run is None or not run.complete or "".join(pieces) != run.text:
            return None
        return self._end(run.ids)

    def accept_ids(self, ids: Sequence[int]) -> tuple[int, ...] | None:
        """Return ``ids``, the run's text tokenised anew, if count and every known id agree; ends the run then."""
        run = self.run
        if run is None or len(ids) != run.count:
            return None
        if run.known.get(run.count - 1) != ids[-1] or any(ids[at] != token for at, token in run.known.items()):
            return None
        return self._end(tuple(ids))

    def failed(self) -> None:
        """Note that the run could not be matched now; later text may settle it, but not for ever."""
        run = self.run
        if run is not None:
            run.tries += 1
            if run.tries >= MAX_TRIES or len(run.text) > MAX_TEXT:
                self.hopeless = True
                self.run = None

    def _end(self, ids: tuple[int, ...]) -> tuple[int, ...]:
        self.run = None
        return ids
