"""Votes on one node's unproven death: ours go out, others' come in, and the judge hears when most agree."""

import time
from collections.abc import Callable, Coroutine
from typing import Any

from detectors import announce
from detectors.evidence import Evidence, ProbeDue, Vote
from detectors.fleet import Fleet
from detectors.seat import Seat
from recovery.errors import StoreUnavailable

_ASKED_S = 1.0
"""Least time between two probes that others' votes ask for."""
_BY_PROBE = frozenset({"hang", "unreachable"})


class Voting:
    """One watch's. `start` runs what must be awaited; `take` gives its judge evidence."""

    def __init__(
        self,
        fleet: Fleet,
        node: str,
        seat: Seat,
        start: Callable[[Coroutine[Any, Any, None]], None],
        take: Callable[[Evidence], None],
    ) -> None:
        self._fleet = fleet
        self._node = node
        self._seat = seat
        self._start = start
        self._take = take
        self._sending = False
        self._asked_at = -_ASKED_S

    def cast(self, epoch: int, vote: Vote) -> None:
        """Give our own vote; the judge repeats it for as long as it stands."""
        self._seat.cast(self._fleet.sentinel, vote, time.monotonic())
        if not self._sending:
            self._sending = True
            self._start(self._send(epoch, vote))
        self.count()

    def hear(self, sentinel: str, vote: Vote, at: float) -> None:
        """Take another sentinel's vote on the present epoch, given at a steady time.

        What it found by probing is worth a probe here at once.
        """
        self._seat.cast(sentinel, vote, at)
        now = time.monotonic()
        if vote.cause in _BY_PROBE and now - self._asked_at >= _ASKED_S:
            self._asked_at = now
            self._take(ProbeDue())
        self.count()

    def count(self) -> None:
        """Tell the judge if most watchers agree now."""
        elected = self._seat.elected(time.monotonic())
        if elected is not None:
            self._take(elected)

    async def _send(self, epoch: int, vote: Vote) -> None:
        try:
            await announce.vote(self._fleet, self._node, epoch, vote)
        except StoreUnavailable:
            return
        finally:
            self._sending = False
