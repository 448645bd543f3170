"""What gateways say of an engine reaches the sentinel: tokens they receive, streams that stand still."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from recovery import events
from recovery.events import Kind
from recovery.registry import NodeState
from recovery.store import Store
from tests.integration.detectors.test_sentinel import read_events, sentinel, until, until_state
from tests.rigs.fake_agent import fake_agent
from tests.rigs.fake_llamacpp import fake_llamacpp


@contextlib.asynccontextmanager
async def tokens(store: Store, name: str) -> AsyncIterator[None]:
    """Say ten times a second that tokens come from `name`, a node@epoch."""

    async def say() -> None:
        while True:
            await events.publish_tokens(store, "g1", {name: 5})
            await asyncio.sleep(0.1)

    task = asyncio.create_task(say())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_node_whose_tokens_reach_gateways_is_not_dead_however_silent_its_agent(
    redis_url: str, store: Store
) -> None:
    """It is when they stop."""
    async with fake_agent("a") as agent:
        await agent.join(store)
        async with sentinel(redis_url):
            await until_state(store, NodeState.ALIVE)
            await until(lambda: agent.pings > 10)
            async with tokens(store, "a@1"):
                agent.silent = True
                await until_state(store, NodeState.SUSPECT)
                await asyncio.sleep(4.0)  # twice what an agent's silence is borne without them
                assert await read_events(store, Kind.NODE_DEAD) == []
            await until_state(store, NodeState.DEAD)


async def test_tokens_of_an_earlier_epoch_save_nobody(redis_url: str, store: Store) -> None:
    """They came from an engine that is gone."""
    async with fake_agent("a", epoch=2) as agent:
        await agent.join(store)
        async with sentinel(redis_url):
            await until_state(store, NodeState.ALIVE)
            await until(lambda: agent.pings > 10)
            async with tokens(store, "a@1"):
                agent.silent = True
                await until_state(store, NodeState.DEAD)


async def test_streams_that_stand_still_at_a_gateway_have_the_engine_probed_at_once(
    redis_url: str, store: Store
) -> None:
    """The engine's own counter may not show it, and the next periodic probe is far away."""
    async with fake_llamacpp() as engine, fake_agent("a") as agent:
        agent.report.engine_url = engine.url
        await agent.join(store)
        async with sentinel(redis_url, probe={"interval_s": (600.0, 600.0)}):
            await until_state(store, NodeState.ALIVE)
            await until(lambda: engine.probes == 1)  # the first one shows how long they take here
            pings = agent.pings
            await until(lambda: agent.pings > pings + 10)
            assert engine.probes == 1
            fields: events.Fields = {
                "node": "a",
                "epoch": 1,
                "evidence": "3 streams, no token for 420 ms",
                "gateway": "g1",
            }
            await events.publish(store, Kind.UPSTREAM_STALLED, fields)
            await until(lambda: engine.probes > 1)
