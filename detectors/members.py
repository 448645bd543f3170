"""The living sentinels: each renews itself in Redis, on Redis' own clock, and reads there who else does."""

import asyncio
import time
from collections.abc import Callable, Iterable

import structlog

from recovery.errors import StoreUnavailable
from recovery.stopping import within
from recovery.store import SENTINELS, Store

RENEW_S = 0.5
MEMBER_S = 1.5
"""A membership ends so long after its last renewal."""
_AFTER_S = 0.005
_LEAVE_S = 1.0

log = structlog.get_logger()


class Roll:
    """Who counts as living. Pure; times are steady seconds.

    What Redis does not show is no proof of an absence when Redis itself was away or has lost our own entry:
    then those known before stay until they could have renewed.
    """

    def __init__(self) -> None:
        self.living: tuple[str, ...] = ()
        self._keep_until = 0.0
        self._away = False

    def read(self, shown: Iterable[str], now: float, *, lost: bool) -> None:
        """Take in what Redis shows; `lost`: our own entry was not there any more."""
        if self._away or lost:
            self._away = False
            self._keep_until = now + MEMBER_S
        self.living = tuple(sorted({*shown, *self.living} if now < self._keep_until else set(shown)))

    def away(self) -> None:
        """Redis does not answer: everybody stays what they were."""
        self._away = True


class Members:
    """This sentinel's membership, and everybody else's.

    A sentinel that sees no node (`blind`) leaves until it does: its nodes move to those that see, and nobody waits
    for its vote.
    """

    def __init__(self, store: Store, sentinel: str) -> None:
        self.counted: tuple[str, ...] = (sentinel,)
        """Those who watch and vote. Without this one while it is blind and others are not."""
        self._store = store
        self._sentinel = sentinel
        self._roll = Roll()
        self._clock: float | None = None
        self._in = False
        self._known = asyncio.Event()

    async def run(self, blind: Callable[[], bool], changed: Callable[[], None]) -> None:
        """Renew and look until cancelled; call `changed` whenever `counted` is another."""
        while True:
            try:
                pause = await self._renew(0.0 if blind() else MEMBER_S)
            except StoreUnavailable:
                self._roll.away()
                pause = RENEW_S
            else:
                counted = self._roll.living or (self._sentinel,)
                if counted != self.counted or not self._known.is_set():
                    log.info("sentinel.members", sentinel=self._sentinel, sentinels=list(counted))
                    self.counted = counted
                    changed()
                self._known.set()
            await asyncio.sleep(pause)

    async def known(self) -> None:
        """Wait until Redis has said who lives."""
        await self._known.wait()

    async def leave(self) -> None:
        """End the membership in good order, if Redis answers."""
        try:
            await within(_LEAVE_S, self._renew(0.0))
        except (StoreUnavailable, TimeoutError) as error:
            log.info("sentinel.leave_not_told", sentinel=self._sentinel, error=str(error))

    def since(self, redis_ms: int, now: float) -> float | None:
        """Return the seconds passed since a time on Redis' clock; None while that clock is not known."""
        return None if self._clock is None else max(0.0, now + self._clock - redis_ms / 1e3)

    async def _renew(self, hold_s: float) -> float:
        """Renew for so long (0: leave), read the others, and return the pause until the next look, s."""
        asked = time.monotonic()
        now_ms, was, first_ms, *shown = await self._store.run(
            "member_renew", [SENTINELS], [self._sentinel, round(hold_s * 1e3)]
        )
        now = time.monotonic()
        self._clock = int(now_ms) / 1e3 - (asked + now) / 2
        self._roll.read(shown, now, lost=self._in and was == "0")
        self._in = hold_s > 0
        left_s = (int(first_ms) - int(now_ms)) / 1e3 if int(first_ms) else RENEW_S
        return min(RENEW_S, left_s + _AFTER_S)
