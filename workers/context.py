"""What every step is given, and the ways a step may end other than with its outcome."""

from dataclasses import dataclass

from recovery.config import Settings
from recovery.errors import UnbrokenError
from recovery.store import Store

TAKEOVERS = "takeovers"
"""Name of the cluster-wide limit on nodes being reclaimed and restarted at once (requirements D8)."""

PERMIT_MS = 10_000
"""A takeover permit that nobody prolongs for this long lapses."""


@dataclass(frozen=True, slots=True)
class Context:
    """One process's tools, and the number of the step attempt they are used for."""

    settings: Settings
    store: Store
    token: str | None = None
    """The agents' shared secret."""
    attempt: int = 0


class Wait(UnbrokenError):
    """The step cannot be tried yet."""

    def __init__(self, message: str, pause_s: float = 0.5, *, restart_clock: bool = False) -> None:
        super().__init__(message)
        self.pause_s = pause_s
        self.restart_clock = restart_clock
        """Whether the wait is no fault of the node's, so that the step's deadline must not count it."""


class Skip(UnbrokenError):
    """The step has nothing to do."""
