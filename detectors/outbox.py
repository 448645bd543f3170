"""What one node's watch has to tell Redis: at most one verdict and one state, kept until Redis takes them."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from detectors.evidence import ChangeState, Dead
from recovery.errors import StoreUnavailable

_RETRY_S = 0.2


@dataclass(frozen=True, slots=True)
class Posting:
    """A verdict or a state change of (node, epoch), and when it was decided."""

    epoch: int
    what: Dead | ChangeState
    wall_ms: int = field(default_factory=lambda: int(time.time() * 1_000))


class Outbox:
    """A queue that never holds more than what still matters: a later state replaces an earlier one."""

    def __init__(self, publish: Callable[[Posting], Awaitable[None]]) -> None:
        self._publish = publish
        self._verdict: Posting | None = None
        self._state: Posting | None = None
        self._due = asyncio.Event()
        self._sent_at = 0.0

    @property
    def quiet_s(self) -> float:
        """Seconds since the last posting went out; 0 while one waits."""
        return 0.0 if self._due.is_set() else time.monotonic() - self._sent_at

    def put(self, posting: Posting) -> None:
        """Have it published; what it overtakes is dropped."""
        if self._verdict and posting.epoch > self._verdict.epoch:
            self._verdict = None  # somebody has fenced that epoch already
        if isinstance(posting.what, Dead):
            self._verdict, self._state = posting, None
        else:
            self._state = posting
        self._due.set()

    async def run(self) -> None:
        """Publish until cancelled; wait for Redis where it is away."""
        while True:
            await self._due.wait()
            posting = self._verdict or self._state
            if posting is None:
                self._due.clear()
                continue
            try:
                await self._publish(posting)
            except StoreUnavailable:
                await asyncio.sleep(_RETRY_S)
                continue
            self._sent_at = time.monotonic()
            if self._verdict is posting:
                self._verdict = None
            elif self._state is posting:
                self._state = None
