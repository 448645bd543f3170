"""What a client has of its answer, over all attempts: sure token ids, and the text beyond their last boundary.

Pure. The one place where it is decided which part of a new attempt's output is new to the client.
"""

from collections.abc import Sequence

from engines.base import Chunk
from recovery.requeue import Plan


class Diverged(Exception):
    """The new attempt's output is not what the client already has."""


class Delivery:
    """The delivered part of one answer.

    Three positions in the delivered text matter: its end, the *boundary* up to which `ids` account for
    it, and how far the current attempt has got. `_tail` is the text from boundary to end, `_ahead` the
    text from the attempt's position to the end: what it must repeat before anything is new.
    """

    __slots__ = ("_ahead", "_base", "_offset", "_tail", "_text", "generated", "ids")

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.generated = 0
        """Tokens of the finished answer, known once its last chunk came."""
        self._text: list[str] = []
        self._tail = ""
        self._ahead = ""
        self._offset = 0
        self._base = 0

    @property
    def started(self) -> bool:
        """Whether the client has anything."""
        return bool(self.ids or self._text)

    @property
    def text(self) -> str:
        """The delivered text."""
        return "".join(self._text)

    def begin(self, plan: Plan) -> None:
        """Start an attempt: from the boundary, or from the very beginning when it replays."""
        if plan.skip_ids:
            self._ahead = self.text
            self._offset = self._base = 0
        else:
            self._ahead = self._tail
            self._offset = self._base = len(self.ids)

    def accept(self, chunk: Chunk) -> tuple[str, Sequence[int]]:
        """Take a chunk of the current attempt; return the text and the sure ids that are new.

        Raises Diverged when it contradicts what the client has.
        """
        text = chunk.text
        if self._ahead:
            text = self._repeat(text)
        if text:
            self._text.append(text)
        new: Sequence[int] = chunk.ids
        if not chunk.sure:
            self._tail += text
        elif self._offset == len(self.ids):
            self.ids += chunk.ids
            self._offset += len(chunk.ids)
            self._tail = self._ahead
        else:
            new = self._repeat_ids(chunk.ids, text)
        if chunk.finish is not None:
            self._finish(chunk)
        return text, new

    def _repeat(self, text: str) -> str:
        known = min(len(text), len(self._ahead))
        if text[:known] != self._ahead[:known]:
            raise Diverged("the new attempt's text differs from what was delivered")
        self._ahead = self._ahead[known:]
        return text[known:]

    def _repeat_ids(self, ids: Sequence[int], text: str) -> Sequence[int]:
        end = self._offset + len(ids)
        known = min(end, len(self.ids)) - self._offset
        if list(ids[:known]) != self.ids[self._offset : self._offset + known]:
            raise Diverged("the new attempt's tokens differ from what was delivered")
        self._offset = end
        if end < len(self.ids):
            self._tail += text
            return ()
        self.ids += ids[known:]
        self._tail = self._ahead
        return ids[known:]

    def _finish(self, chunk: Chunk) -> None:
        self.generated = self._offset if chunk.generated is None else self._base + chunk.generated
        if self._ahead or self.generated < len(self.ids):
            raise Diverged("the new attempt ended before it reached what was delivered")
