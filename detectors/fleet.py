"""What all watches of a sentinel share."""

import asyncio
import time
from dataclasses import dataclass, field

import structlog

from detectors.blindness import Blindness
from detectors.members import Members
from detectors.metrics import Metrics
from detectors.pace import Pace
from detectors.rules import Rules
from recovery.config import Settings
from recovery.store import Store

_LATE_S = 0.1
"""Own timers that are later than this make every pong look late."""
_STARVED_S = 0.5
_LINKS_S = 0.005
_ASKING = 16
"""Status calls at once, a channel each: more would starve the sentinel that is to judge by them."""
_KNOCKING = 64
_HURRYING = 16
"""Nodes pinged at the confirm cadence at once; where more are late together, it is hardly each one's own fault."""
_OPENING = 32
"""Streams being opened at once: hundreds together would be late for each other."""

log = structlog.get_logger()


@dataclass(slots=True)
class Fleet:
    """Settings and connections (the sentinel owns and closes them), and whether it sees at all."""

    settings: Settings
    rules: Rules
    store: Store
    token: str | None
    sentinel: str
    members: Members
    metrics: Metrics = field(default_factory=Metrics)
    blindness: Blindness = field(default_factory=Blindness)
    redis_away: bool = False
    leases_vanished: bool = False
    """Most leases went together."""
    asking: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_ASKING))
    knocking: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_KNOCKING))
    opening: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_OPENING))
    pace: Pace = field(init=False)
    _hurrying: set[str] = field(default_factory=set)
    _starved_until: float = 0.0
    _links_gone: bool = False
    _links_read_at: float = 0.0

    def __post_init__(self) -> None:
        """Begin at the usual pace."""
        self.pace = Pace(self.rules.ping_interval_s)
        self.metrics.interval.set(self.pace.interval_s)

    @property
    def blind(self) -> bool:
        """Whether unproven verdicts must wait."""
        return self.redis_away or self.leases_vanished or self.starved or self._links_blind

    @property
    def starved(self) -> bool:
        """Whether the sentinel itself does not get to run: what is late then may be late here only."""
        return time.monotonic() < self._starved_until

    @property
    def _links_blind(self) -> bool:
        """The same as `blindness.blind`, some ms old: every evidence asks, and all nodes may be lost."""
        now = time.monotonic()
        if now - self._links_read_at > _LINKS_S:
            self._links_gone, self._links_read_at = self.blindness.blind, now
        return self._links_gone

    async def fed(self) -> None:
        """Wait until the sentinel is not starved: a question asked before would be late here, and starve it further."""
        while self.starved:  # noqa: ASYNC110 - time passing is what ends it
            await asyncio.sleep(_STARVED_S / 10)

    def hurries(self, node: str, *, wanted: bool) -> bool:
        """Whether a node may be pinged at the confirm cadence: four times the pings of all nodes would starve us."""
        if not wanted or self.starved:
            self._hurrying.discard(node)
        elif len(self._hurrying) < _HURRYING:
            self._hurrying.add(node)
        return node in self._hurrying

    def woke(self, late_s: float) -> None:
        """Take in how late one of our own timers was."""
        now, pace = time.monotonic(), self.pace
        usual = pace.interval_s == pace.usual_s
        if pace.woke(late_s, now):
            self.metrics.interval.set(pace.interval_s)
            if usual:
                log.warning("sentinel.pings_slower", sentinel=self.sentinel, mend="more sentinels, or more CPU")
            elif pace.interval_s == pace.usual_s:
                log.info("sentinel.pings_as_usual", sentinel=self.sentinel)
        if late_s > _LATE_S:
            if not self.starved:
                log.info("sentinel.starved", sentinel=self.sentinel, late_ms=round(late_s * 1e3))
            self._starved_until = now + _STARVED_S

    @property
    def blind_to(self) -> str:
        """What it does not see, in words."""
        causes = {
            "Redis": self.redis_away,
            "most leases": self.leases_vanished,
            "all links": self.blindness.blind,
        }
        return ", ".join(cause for cause, holds in causes.items() if holds)
