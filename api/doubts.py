"""What this gateway holds against nodes by its own experience: suspicions that pass, failures that add up.

Pure: times are monotonic seconds, passed in. A refusal (4xx) is neither failure nor success and never gets here.
"""

from collections.abc import Collection

SUSPECT_S = 1.0
"""How long a node this gateway saw failing takes nothing from it, unless somebody else's verdict comes."""
FAILURES = 3
"""Requests in a row that a node answered with an error and another node then served."""

Key = tuple[str, int]
"""Node and epoch."""


class Doubts:
    """Suspicions and failures by (node, epoch)."""

    def __init__(self) -> None:
        self._until: dict[Key, float] = {}
        self._failures: dict[Key, int] = {}

    def suspect(self, key: Key, now: float) -> None:
        """Suspect an engine from now on, for a while."""
        self._until[key] = now + SUSPECT_S

    def suspected(self, key: Key, now: float) -> bool:
        """Whether an engine is suspected."""
        return self._until.get(key, 0.0) > now

    def failed(self, key: Key) -> bool:
        """Count a request that this engine failed and another one then served; True when it is one too many.

        Only then does it tell of the engine: what fails everywhere is the request's own fault.
        """
        count = self._failures[key] = self._failures.get(key, 0) + 1
        return count >= FAILURES

    def served(self, key: Key) -> None:
        """An engine has made a token of an answer: its earlier failures are forgiven."""
        if self._failures:
            self._failures.pop(key, None)

    def keep(self, keys: Collection[Key]) -> None:
        """Forget all engines but these."""
        self._until = {key: until for key, until in self._until.items() if key in keys}
        self._failures = {key: count for key, count in self._failures.items() if key in keys}
