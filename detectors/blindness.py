"""Whether so much vanished at once that the fault is more likely ours (design, section 5: BLIND).

Pure: times are passed in, in seconds.
"""

_TOGETHER_S = 1.0


class Blindness:
    """Knows every node's link and tells whether the sentinel still sees.

    Blind: not one link is left, and two or more of them went within the same second. It ends when the
    first link is back. A link that was expected to end (its node stopped, or is being recovered) is no sign.
    """

    def __init__(self) -> None:
        self._up: set[str] = set()
        self._lost_at: dict[str, float] = {}

    @property
    def blind(self) -> bool:
        """Whether unproven verdicts must wait."""
        if self._up or not self._lost_at:
            return False
        last = max(self._lost_at.values())
        return sum(last - at <= _TOGETHER_S for at in self._lost_at.values()) >= 2

    def up(self, node: str) -> None:
        """The node's link works."""
        self._up.add(node)
        self._lost_at.pop(node, None)

    def lost(self, node: str, now: float) -> None:
        """The node's link went, or cannot be opened."""
        self._up.discard(node)
        self._lost_at.setdefault(node, now)

    def forget(self, node: str) -> None:
        """The node's link says nothing: it is not being judged."""
        self._up.discard(node)
        self._lost_at.pop(node, None)
