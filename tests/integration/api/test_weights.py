"""A gateway's routing table on a real Redis: weights, states and deaths are obeyed as soon as their events come."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any, cast

from api.routing import RoutingTable
from recovery import events, leases, registry
from recovery.config import Settings
from recovery.registry import NodeState
from recovery.stopping import stop_tasks
from recovery.store import Store
from tests.rigs.gateway import until

STUCK_S = 5.0
"""Far beyond what is promised (100 ms): only a table that waits for something else takes so long."""


@contextlib.asynccontextmanager
async def _table(store: Store) -> AsyncIterator[RoutingTable]:
    """A table that is told by events alone: nothing here reads the registry again by the clock."""
    table = RoutingTable(Settings(), store, cast("Any", None))
    await table.refresh()
    following = asyncio.create_task(table.follow_events())
    try:
        await asyncio.wait_for(table._outdated.wait(), STUCK_S)  # from here on no event is missed
        yield table
    finally:
        await stop_tasks(following)


async def _node(store: Store, name: str) -> int:
    epoch = (await leases.boot(store, name, name, 0, 0, 60_000)).epoch
    fields: dict[str, str | int | float | bool] = {"model": "m", "engine_url": f"http://127.0.0.1:1/{name}", "slots": 4}
    await registry.register(store, name, epoch, fields)
    await registry.set_state(store, name, epoch, NodeState.ALIVE, weight=1.0)
    return epoch


def _chosen(table: RoutingTable, times: int = 100) -> set[str]:
    return {node.id for node in (table.choose("m") for _ in range(times)) if node is not None}


async def test_each_step_of_a_ramp_and_each_state_is_obeyed_without_reading_the_registry(
    redis_url: str, store: Store
) -> None:
    """Requirements B6: a gateway follows 1 % steps, and every way out of service, by the events alone."""
    epoch = await _node(store, "a")
    await _node(store, "b")
    async with _table(store) as table:
        assert _chosen(table) == {"a", "b"}
        took = []
        steps = [(NodeState.PROBATION, percent / 100) for percent in range(6)]
        steps += [(state, 0.0) for state in (NodeState.DRAINING, NodeState.WARMING, NodeState.STOPPED)]
        for state, weight in [*steps, (NodeState.ALIVE, 1.0)]:
            await registry.set_state(store, "a", epoch, state, weight=weight, why="test", by="test")
            began = time.monotonic()

            async def obeyed(state: NodeState = state, weight: float = weight) -> bool:
                shown = table.nodes["a"]
                return (shown.state, shown.weight) == (state, weight)

            await until(obeyed, STUCK_S, every=0.001)
            took.append(time.monotonic() - began)
            if weight == 0.0:
                assert _chosen(table) == {"b"}
        assert _chosen(table) == {"a", "b"}
        print(f"weights obeyed after {sorted(took)[len(took) // 2] * 1e3:.1f} ms (median), {max(took) * 1e3:.1f} ms")


async def test_a_death_takes_the_weight_though_the_registry_cannot_be_read(redis_url: str, store: Store) -> None:
    """The next event must not wait for a read that an earlier one has asked for (requirements B5)."""
    epoch = await _node(store, "a")
    other = await _node(store, "b")
    async with _table(store) as table:
        reading = asyncio.Event()

        async def never() -> None:
            reading.set()
            await asyncio.sleep(3_600)

        table.refresh = never  # type: ignore[method-assign]
        refreshing = asyncio.create_task(table.keep_fresh())
        await asyncio.wait_for(reading.wait(), STUCK_S)
        await registry.set_state(store, "b", other, NodeState.WARMING)
        fields: dict[str, str | int | float] = {"node": "a", "epoch": epoch, "cause": "hang", "evidence": "test"}
        await events.publish(store, events.Kind.NODE_DEAD, fields)

        async def nobody() -> bool:
            return table.choose("m") is None

        await until(nobody, STUCK_S)
        assert table.nodes["a"].weight == 0.0
        await stop_tasks(refreshing)


async def test_what_happened_before_the_events_were_followed_is_read_from_the_registry(
    redis_url: str, store: Store
) -> None:
    """A state that changed between the first read and the first event is not missed, though no event tells of it."""
    epoch = await _node(store, "a")
    table = RoutingTable(Settings(), store, cast("Any", None))
    await table.refresh()
    await registry.set_state(store, "a", epoch, NodeState.DRAINING)
    tasks = [asyncio.create_task(work()) for work in (table.keep_fresh, table.follow_events)]
    try:

        async def seen() -> bool:
            return table.nodes["a"].state is NodeState.DRAINING

        await until(seen, STUCK_S)
    finally:
        await stop_tasks(*tasks)
