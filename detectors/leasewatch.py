"""Finds leases that ran out, of all nodes in one round trip (requirements D3).

Redis itself lets leases lapse, on its own clock; here is only looked.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from detectors.docket import JUDGED
from recovery.store import Store, available, node_key

POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class Reading:
    """A node's lease as Redis shows it."""

    node: str
    epoch: int
    state: str
    left_ms: int
    """≤ 0: it is not there."""


async def read(store: Store, nodes: Sequence[str]) -> list[Reading]:
    """Read all leases. Raises StoreUnavailable: then every lease is unknown, none expired."""
    if not nodes:
        return []
    with available():
        async with store.redis.pipeline(transaction=False) as pipe:
            for node in nodes:
                # In this order: a fence between the reads shows in the epoch, never as an expired lease.
                pipe.pttl(node_key(node, "lease"))
                pipe.get(node_key(node, "epoch"))
                pipe.hget(node_key(node), "state")
            replies = await pipe.execute()
    return [
        Reading(node, int(replies[3 * i + 1] or 0), replies[3 * i + 2] or "", int(replies[3 * i]))
        for i, node in enumerate(nodes)
    ]


class LeaseWatch:
    """Tells which readings are news. Pure; times are steady seconds."""

    def __init__(self, lease_timeout_s: float) -> None:
        self._timeout = lease_timeout_s
        self._expired: dict[str, int] = {}
        self._published: dict[str, int] = {}
        self._quiet_until = 0.0
        self.away = False
        """Redis did not answer the last time: every lease is unknown, none expired."""

    def sort(self, readings: Sequence[Reading], now: float) -> tuple[list[Reading], list[Reading]]:
        """Return (newly expired, held)."""
        if self.away:
            self.away = False
            self._quiet_until = now + self._timeout
        held = [reading for reading in readings if reading.left_ms > 0]
        for reading in held:
            self._expired.pop(reading.node, None)
        if now < self._quiet_until:
            return [], held  # agents must get to renew first
        expired = [reading for reading in readings if self._ran_out(reading)]
        self._expired.update((reading.node, reading.epoch) for reading in expired)
        return expired, held

    def to_publish(self, reading: Reading) -> bool:
        """Whether this expiry was not announced yet: once per (node, epoch)."""
        if self._published.get(reading.node) == reading.epoch:
            return False
        self._published[reading.node] = reading.epoch
        return True

    def unpublished(self, reading: Reading) -> None:
        """It could not be announced after all: the next look tries again."""
        self._published.pop(reading.node, None)
        self._expired.pop(reading.node, None)

    def _ran_out(self, reading: Reading) -> bool:
        return (
            reading.left_ms <= 0
            and reading.epoch > 0
            and reading.state in JUDGED
            and self._expired.get(reading.node) != reading.epoch
        )
