"""Finds leases that ran out, of all nodes in one round trip (requirements D3).

Redis itself lets leases lapse, on its own clock; here is only looked, just when the next one may lapse.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from detectors.docket import JUDGED
from recovery.store import Store, node_key

POLL_S = 0.1
"""Longest pause between two looks, and between two at a lease that is not there."""
_CALM_S = 1.0
"""Longest pause between two looks at a lease that is held."""
_AFTER_S = 0.003
"""How long after its end a lease is looked at again."""
_TOGETHER_S = 1.0


@dataclass(frozen=True, slots=True)
class Reading:
    """A node's lease as Redis shows it."""

    node: str
    epoch: int
    state: str
    left_ms: int
    """≤ 0: it is not there."""


async def read(store: Store, nodes: Sequence[str]) -> list[Reading]:
    """Read the leases of `nodes`. Raises StoreUnavailable: then every lease is unknown, none expired."""
    calls = [([node_key(node, "lease"), node_key(node, "epoch"), node_key(node)], ()) for node in nodes]
    replies = await store.run_many("lease_read", calls)
    return [
        Reading(node, int(epoch), state, int(left_ms))
        for node, (left_ms, epoch, state) in zip(nodes, replies, strict=True)
    ]


class LeaseWatch:
    """Tells which leases to look at, and which readings are news. Pure; times are steady seconds."""

    def __init__(self, lease_timeout_s: float) -> None:
        self._timeout = lease_timeout_s
        self._look_at: dict[str, float] = {}
        self._held: set[str] = set()
        self._lost_at: dict[str, float] = {}
        self._expired: dict[str, int] = {}
        self._published: dict[str, int] = {}
        self._quiet_until = 0.0
        self._vanished = False
        self.away = False
        """Redis did not answer the last time: every lease is unknown, none expired."""

    def due(self, nodes: Iterable[str], now: float) -> list[str]:
        """Return the nodes whose leases are to be read now."""
        return [node for node in nodes if self._look_at.get(node, now) <= now]

    def pause_s(self, nodes: Iterable[str], now: float) -> float:
        """Return the seconds until the first of their leases is to be read, POLL_S at most."""
        return min([POLL_S, *(max(0.0, self._look_at.get(node, now) - now) for node in nodes)])

    def any_lost(self, readings: Iterable[Reading]) -> bool:
        """Whether one of these leases was held at the last look and is not any more."""
        return any(reading.left_ms <= 0 and reading.node in self._held for reading in readings)

    def sort(self, readings: Sequence[Reading], now: float) -> tuple[list[Reading], list[Reading]]:
        """Return (newly expired, held)."""
        if self.away:
            self.away = False
            self._quiet_until = now + self._timeout
        held = [reading for reading in readings if reading.left_ms > 0]
        for reading in readings:
            self._note(reading, now)
        if self._gone_together(now):
            self._vanished, self._quiet_until = True, now + self._timeout
        if now < self._quiet_until:
            return [], held  # agents must get to renew first
        expired = [reading for reading in readings if self._ran_out(reading)]
        self._expired.update((reading.node, reading.epoch) for reading in expired)
        return expired, held

    def vanished(self, now: float) -> bool:
        """Whether most leases went together: Redis has more likely lost them than all agents have died.

        Held for one lease timeout, in which living agents renew.
        """
        self._vanished = self._vanished and now < self._quiet_until
        return self._vanished

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

    def forget(self, node: str) -> None:
        """The node is watched no more."""
        self._held.discard(node)
        for known in (self._look_at, self._lost_at, self._expired):
            known.pop(node, None)

    def _note(self, reading: Reading, now: float) -> None:
        node = reading.node
        if reading.left_ms > 0:
            self._look_at[node] = now + min(_CALM_S, reading.left_ms / 1e3 + _AFTER_S)
            self._expired.pop(node, None)
            self._lost_at.pop(node, None)
            self._held.add(node)
            return
        self._look_at[node] = now + POLL_S
        if node in self._held:
            self._held.discard(node)
            if reading.state in JUDGED:
                self._lost_at[node] = now

    def _gone_together(self, now: float) -> bool:
        self._lost_at = {node: at for node, at in self._lost_at.items() if now - at <= _TOGETHER_S}
        return len(self._lost_at) > max(1, len(self._held))

    def _ran_out(self, reading: Reading) -> bool:
        return (
            reading.left_ms <= 0
            and reading.epoch > 0
            and reading.state in JUDGED
            and self._expired.get(reading.node) != reading.epoch
        )
