"""Waits, with deadlines, for what a stack should do: nodes that come up, a recovery that ends."""

import asyncio
import time
from typing import Any

from cli.operations import Operations
from recovery import events
from recovery.errors import UnbrokenError
from recovery.store import Store


class WaitedInVain(UnbrokenError):
    """What was waited for did not come about before the deadline."""


async def wait_for_nodes(api: Operations, count: int, timeout: float = 60.0) -> list[dict[str, Any]]:
    """Wait until `count` nodes are ALIVE and return all nodes. Raises WaitedInVain with what was seen."""
    deadline = time.monotonic() + timeout
    while True:
        nodes: list[dict[str, Any]] = (await api.get("/v1/nodes"))["data"]
        if sum(node["state"] == "ALIVE" for node in nodes) >= count:
            return nodes
        if time.monotonic() > deadline:
            seen = "; ".join(f"{node['id']} {node['state']} {node['detail']}" for node in nodes) or "none registered"
            raise WaitedInVain(f"{count} nodes should be ALIVE within {timeout:g} s; there are: {seen}")
        await asyncio.sleep(0.1)


async def wait_for_job(api: Operations, node: str, since_ms: int, timeout: float = 90.0) -> dict[str, Any]:
    """Wait until a job of the node, created since then, has ended; return it. Raises WaitedInVain."""
    deadline = time.monotonic() + timeout
    seen = "none was created"
    while time.monotonic() < deadline:
        for job in (await api.get("/v1/recovery/jobs"))["data"]:
            if job["node"] == node and job["created_ms"] >= since_ms:
                seen = f"{job['id']} is {job['state']}"
                if job["ended_ms"]:
                    full: dict[str, Any] = await api.get(f"/v1/recovery/jobs/{job['id']}")
                    return full
        await asyncio.sleep(0.1)
    raise WaitedInVain(f"a recovery of node {node} should have ended within {timeout:g} s; {seen}")


async def detected_ms(redis_url: str, node: str, epoch: int) -> int:
    """Return the wall-clock ms at which the sentinel found (node, epoch) dead. Raises WaitedInVain."""
    store = Store(redis_url)
    try:
        for event in await events.history(store):
            if event.kind == events.Kind.NODE_DEAD and event.node == node and event.epoch == epoch:
                return int(event.fields["detected_ms"])
    finally:
        await store.aclose()
    raise WaitedInVain(f"no event tells of the death of node {node}, epoch {epoch}")
