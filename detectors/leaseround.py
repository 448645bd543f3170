"""The round over the leases of the watched nodes: tells their judges, announces what ran out, notices Redis away."""

import asyncio
import time
from collections.abc import Mapping

import structlog

from detectors import leasewatch
from detectors.evidence import LeaseExpired, LeaseHeld
from detectors.fleet import Fleet
from detectors.watch import Watch
from recovery import events
from recovery.errors import StoreUnavailable

log = structlog.get_logger()


class LeaseRound:
    """Reads each lease just when it may lapse (requirements D3)."""

    def __init__(self, fleet: Fleet, watches: Mapping[str, Watch]) -> None:
        self._fleet = fleet
        self._watches = watches
        self._leases = leasewatch.LeaseWatch(fleet.settings.lease.lease_timeout_ms / 1e3)

    def forget(self, node: str) -> None:
        """The node is watched no more."""
        self._leases.forget(node)

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await asyncio.sleep(self._leases.pause_s(self._watches, time.monotonic()))
            due = self._leases.due(self._watches, time.monotonic())
            if not due:
                continue
            try:
                readings = await leasewatch.read(self._fleet.store, due)
                if self._leases.any_lost(readings):
                    # Whether it went alone shows only beside all others.
                    others = [node for node in self._watches if node not in due]
                    readings += await leasewatch.read(self._fleet.store, others)
            except StoreUnavailable as error:
                if not self._fleet.redis_away:
                    log.warning("sentinel.redis_away", error=str(error))
                self._leases.away = self._fleet.redis_away = True
                await asyncio.sleep(leasewatch.POLL_S)
                continue
            if self._fleet.redis_away:
                log.info("sentinel.redis_back")
                self._fleet.redis_away = False
            now = time.monotonic()
            expired, held = self._leases.sort(readings, now)
            self._fleet.leases_vanished = self._leases.vanished(now)
            for reading in held:
                self._tell(reading, LeaseHeld())
            for reading in expired:
                self._tell(reading, LeaseExpired())
                if self._primary(reading.node) and self._leases.to_publish(reading):
                    await self._announce(reading)

    def _primary(self, node: str) -> bool:
        watch = self._watches.get(node)
        return watch is not None and watch.seat.primary

    def _tell(self, reading: leasewatch.Reading, evidence: LeaseExpired | LeaseHeld) -> None:
        watch = self._watches.get(reading.node)
        if watch is not None and watch.judge.epoch == reading.epoch:
            watch.take(evidence)

    async def _announce(self, reading: leasewatch.Reading) -> None:
        log.warning("sentinel.lease_expired", node=reading.node, epoch=reading.epoch)
        try:
            await events.publish(
                self._fleet.store,
                events.Kind.LEASE_EXPIRED,
                {"node": reading.node, "epoch": reading.epoch, "sentinel": self._fleet.sentinel},
            )
        except StoreUnavailable:
            self._leases.unpublished(reading)
