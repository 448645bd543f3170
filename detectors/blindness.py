"""Whether so much vanished at once that the fault is more likely ours (design, section 5: BLIND).

Pure: times are passed in, in seconds.
"""

_TOGETHER_S = 1.0
_PATIENCE_S = 5.0
"""After this, what still answers has shown that we see; the others' silence is their own."""


class Blindness:
    """Knows every node's link and tells whether the sentinel still sees.

    Blind: two or more links went within the same second, and either not one is left or most of the hosts are
    gone. It ends when the first link is back, or after 5 s where others have answered all the time. A link
    that was expected to end (its node stopped, or is being recovered) is no sign; nor is a single host.
    """

    def __init__(self) -> None:
        self._up: dict[str, str] = {}
        self._lost: dict[str, tuple[str, float]] = {}
        self._now = 0.0

    @property
    def blind(self) -> bool:
        """Whether unproven verdicts must wait."""
        if not self._lost:
            return False
        last = max(at for _, at in self._lost.values())
        together = [host for host, at in self._lost.values() if last - at <= _TOGETHER_S]
        if len(together) < 2:
            return False
        if not self._up:
            return True
        hosts_left = set(self._up.values())
        hosts_gone = set(together) - hosts_left
        return len(hosts_gone) > max(1, len(hosts_left)) and self._now - last <= _PATIENCE_S

    def up(self, node: str, host: str = "") -> None:
        """The node's link works. `host`: the machine it is on; empty: one of its own."""
        self._up[node] = host or node
        self._lost.pop(node, None)

    def lost(self, node: str, now: float, host: str = "") -> None:
        """The node's link went, or cannot be opened; told again at each look."""
        self._now = max(self._now, now)
        self._up.pop(node, None)
        self._lost.setdefault(node, (host or node, now))

    def forget(self, node: str) -> None:
        """The node's link says nothing: it is not being judged."""
        self._up.pop(node, None)
        self._lost.pop(node, None)
