"""A sentinel that has too much to do becomes slower, never wrong."""

import asyncio
import time

import structlog

from recovery import registry
from recovery.events import Kind
from recovery.registry import NodeState
from recovery.store import Store
from tests.integration.detectors.test_sentinel import read_events, sentinel, until, until_state
from tests.rigs.fake_agent import fake_agent


async def overload(seconds: float) -> None:
    """Take nearly all the time of this event loop."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.12)  # noqa: ASYNC251 - that is the overload
        await asyncio.sleep(0.001)


async def test_overload_stretches_the_pings_suspects_nobody_and_passes(redis_url: str, store: Store) -> None:
    """Timers that are steadily late slow all pings down; with ease, the usual pace returns."""
    async with fake_agent("a") as agent:
        await agent.join(store)
        with structlog.testing.capture_logs() as logs:
            async with sentinel(redis_url):
                await until_state(store, NodeState.ALIVE)
                await overload(4.0)
                suspicions = [
                    event for event in await read_events(store, Kind.NODE_STATE) if event.fields["state"] == "SUSPECT"
                ]
                assert suspicions == []
                assert [line for line in logs if line["event"] == "sentinel.pings_slower"]
                await until(lambda: [line for line in logs if line["event"] == "sentinel.pings_as_usual"])
                assert (await registry.get(store, "a")).state is NodeState.ALIVE
                assert not await read_events(store, Kind.NODE_DEAD)
