"""Leases and epochs: who may act for a node, and under which fencing version (requirements D3, D4).

An epoch only ever grows: when an engine is replaced or fenced. The agent keeps its own floor on disk.
"""

import time
from dataclasses import dataclass
from typing import Literal

from recovery.errors import LeaseHeld, StaleEpoch
from recovery.store import Store, available, node_key


@dataclass(frozen=True, slots=True)
class Boot:
    """What a starting agent must do."""

    verdict: Literal["start", "adopt", "fenced"]
    """``start`` a new engine, ``adopt`` the running one, or wait ``fenced`` for the recovery job's commands."""
    epoch: int


async def boot(store: Store, node: str, holder: str, floor: int, running_epoch: int, timeout_ms: int) -> Boot:
    """Take the node's lease for a starting agent. Raises LeaseHeld, StoreUnavailable."""
    verdict, value = await store.run(
        "lease_boot",
        [node_key(node, "epoch"), node_key(node, "lease"), node_key(node)],
        [holder, floor, timeout_ms, running_epoch],
    )
    if verdict == "held":
        raise LeaseHeld(f"node {node}: its lease is held by agent {value}; stop that agent or choose another node id")
    return Boot(verdict, int(value))


async def renew(store: Store, node: str, holder: str, epoch: int, timeout_ms: int) -> None:
    """Prolong the lease. Raises StaleEpoch when the node was fenced, LeaseHeld, StoreUnavailable."""
    verdict, value = await store.run(
        "lease_renew", [node_key(node, "epoch"), node_key(node, "lease")], [holder, epoch, timeout_ms]
    )
    if verdict == "stale":
        raise StaleEpoch(node, epoch, int(value))
    if verdict == "held":
        raise LeaseHeld(f"node {node}: its lease is held by agent {value}")


async def fence(store: Store, node: str, epoch: int, job: str) -> int:
    """Refuse everything (node, epoch) does from now on; return the new epoch. Idempotent per job.

    Raises StaleEpoch when the node has moved on already, StoreUnavailable.
    """
    verdict, value = await store.run(
        "fence",
        [node_key(node, "epoch"), node_key(node, "lease"), node_key(node)],
        [epoch, job, int(time.time() * 1_000)],
    )
    if verdict == "stale":
        raise StaleEpoch(node, epoch, int(value))
    return int(value)


async def current_epoch(store: Store, node: str) -> int:
    """Return the node's epoch, 0 when it never had one."""
    with available():
        return int(await store.redis.get(node_key(node, "epoch")) or 0)


async def remaining_ms(store: Store, node: str) -> int:
    """Return the lease's time left in ms of Redis time; ≤ 0 when it expired or never was."""
    with available():
        return int(await store.redis.pttl(node_key(node, "lease")))


async def release(store: Store, node: str, holder: str, epoch: int) -> None:
    """Give the lease up at an orderly stop, so that a restart need not wait for it to lapse."""
    with available():
        key = node_key(node, "lease")
        if await store.redis.get(key) == f"{holder}|{epoch}":
            await store.redis.delete(key)
