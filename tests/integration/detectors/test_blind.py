"""What a sentinel does while it does not see: no Redis, an empty one, a blocked loop, no leases (case G4-05)."""

import asyncio
import contextlib
import os
import shutil
import signal
import time
from collections.abc import AsyncIterator, MutableMapping
from typing import Any

import pytest
import structlog

from recovery import registry
from recovery.config import load
from recovery.events import Kind
from recovery.registry import NodeState
from recovery.store import Store, node_key
from tests.integration.detectors.test_sentinel import read_events, sentinel, sentinel_with, until, until_state
from tests.rigs.fake_agent import FakeAgent, fake_agent
from tests.rigs.lone_agent import lone_agent
from tests.rigs.valkey import Valkey

NODES = ("a", "b", "c", "d", "e")
Logs = list[MutableMapping[str, Any]]


@contextlib.asynccontextmanager
async def fleet(store: Store, lease_ms: int) -> AsyncIterator[list[FakeAgent]]:
    """Run and register five agents."""
    async with contextlib.AsyncExitStack() as stack:
        agents = [await stack.enter_async_context(fake_agent(name)) for name in NODES]
        for agent in agents:
            await agent.join(store, lease_ms=lease_ms)
        yield agents


async def all_alive(store: Store) -> None:
    """Wait for every node to be ALIVE with full weight, under the epoch it had."""
    for name in NODES:
        node = await until_state(store, NodeState.ALIVE, name)
        assert (node.epoch, node.weight) == (1, 1.0)


async def deaths(store: Store) -> list[str]:
    """Return the nodes declared dead so far."""
    return [name for name in NODES if await read_events(store, Kind.NODE_DEAD, name)]


def said(logs: Logs, event: str) -> Logs:
    """Return the log lines of an event."""
    return [line for line in logs if line["event"] == event]


@pytest.mark.parametrize(
    ("lease_ms", "away_s"), [(5_000, 8.0), (700, 4.2)], ids=["8 s", "30 s at a seventh of the lease timeout"]
)
async def test_redis_away_for_longer_than_every_lease_kills_nobody(
    own_valkey: Valkey, lease_ms: int, away_s: float
) -> None:
    """All leases have lapsed when it is back. One alarm, and then everything as before, under the same epochs."""
    store = Store(own_valkey.url)
    lease = {"lease_timeout_ms": lease_ms, "renew_interval_ms": lease_ms // 7}
    with structlog.testing.capture_logs() as logs:
        async with fleet(store, lease_ms), sentinel(own_valkey.url, lease=lease):
            await all_alive(store)
            # When
            os.kill(own_valkey.pid, signal.SIGSTOP)
            try:
                await asyncio.sleep(away_s)
            finally:
                os.kill(own_valkey.pid, signal.SIGCONT)
            # Then
            await until(lambda: said(logs, "sentinel.sees_again"))
            await asyncio.sleep(2 * lease_ms / 1e3)  # long enough for a verdict, were there one
            await all_alive(store)
            assert await deaths(store) == []
    await store.aclose()
    assert [line["to"] for line in said(logs, "sentinel.blind")] == ["Redis"]


async def test_a_redis_that_comes_back_empty_is_told_everything_again(own_valkey: Valkey) -> None:
    """Agents register under the epochs they had; states are written again; no sentinel believes itself alone."""
    store = Store(own_valkey.url)
    lease = {"lease_timeout_ms": 1_500}
    async with fleet(store, 1_500) as agents, sentinel_with(load(redis={"url": own_valkey.url}, lease=lease)):
        await all_alive(store)
        own_valkey.stop()
        shutil.rmtree(own_valkey.data_dir)
        await asyncio.sleep(2.0)
        own_valkey.start()
        for agent in agents:
            agent.let_lease_lapse()
            await agent.join(store, lease_ms=1_500)
        await all_alive(store)
        await asyncio.sleep(3.0)
        await all_alive(store)
        assert await deaths(store) == []
    await store.aclose()


async def test_most_leases_gone_together_raise_an_alarm_and_no_expiry(redis_url: str, store: Store) -> None:
    """More likely Redis has lost them than four of five agents died in one moment."""
    with structlog.testing.capture_logs() as logs:
        async with (
            fleet(store, 1_000) as agents,
            sentinel(redis_url, lease={"lease_timeout_ms": 1_000, "renew_interval_ms": 200}),
        ):
            await all_alive(store)
            await until(lambda: all(agent.pings > 10 for agent in agents))
            for agent in agents[:4]:
                agent.let_lease_lapse()
            await store.redis.delete(*(node_key(agent.node, "lease") for agent in agents[:4]))
            await until(lambda: said(logs, "sentinel.blind"))
            for agent in agents[:4]:
                await agent.join(store, NodeState.ALIVE, lease_ms=1_000, weight=1.0)
            await until(lambda: said(logs, "sentinel.sees_again"))
            await all_alive(store)
            expired = [name for name in NODES if await read_events(store, Kind.LEASE_EXPIRED, name)]
            assert await deaths(store) == []
    assert [line["to"] for line in said(logs, "sentinel.blind")] == ["most leases"]
    assert expired == []


async def test_a_sentinel_whose_loop_was_blocked_kills_nobody(redis_url: str, store: Store) -> None:
    """Its agents answered all the time; it just did not read."""
    with structlog.testing.capture_logs() as logs:
        async with lone_agent(redis_url, "a"), lone_agent(redis_url, "b"), sentinel(redis_url):
            await until_state(store, NodeState.ALIVE, "a")
            await until_state(store, NodeState.ALIVE, "b")
            for _ in range(3):
                time.sleep(3.0)  # noqa: ASYNC251 - that is the fault
                await asyncio.sleep(0.5)
            await asyncio.sleep(2.0)
            for name in ("a", "b"):
                await until_state(store, NodeState.ALIVE, name)
                assert (await registry.get(store, name)).epoch == 1
            assert await deaths(store) == []
    assert len(said(logs, "sentinel.slept")) >= 3


async def test_a_starved_sentinel_waits_with_what_is_not_proven_until_it_gets_to_run(
    redis_url: str, store: Store
) -> None:
    """To one that runs late, everything is late; this agent really is stopped, and dead when that is certain."""
    async with lone_agent(redis_url, "a") as pid, sentinel(redis_url):
        await until_state(store, NodeState.ALIVE, "a")
        os.kill(pid, signal.SIGSTOP)
        for _ in range(40):
            time.sleep(0.14)  # noqa: ASYNC251 - that is the fault
            await asyncio.sleep(0.01)
        assert await deaths(store) == []
        await until_state(store, NodeState.DEAD, "a")


async def test_nodes_that_are_late_together_do_not_drown_the_sentinel_in_their_own_confirmations(
    redis_url: str, store: Store
) -> None:
    """Four times the pings of every node would make it late itself, and every late pong asks for more of them."""
    names = [f"n{number}" for number in range(40)]
    async with contextlib.AsyncExitStack() as stack:
        agents = [await stack.enter_async_context(fake_agent(name)) for name in names]
        for agent in agents:
            await agent.join(store)
        await stack.enter_async_context(sentinel(redis_url))
        await until(lambda: all(agent.pings > 10 for agent in agents))
        began, before = time.monotonic(), sum(agent.pings for agent in agents)
        for agent in agents:
            agent.pong_delay_s = 0.5
        await asyncio.sleep(2.0)
        rate = (sum(agent.pings for agent in agents) - before) / (time.monotonic() - began)
        assert [name for name in names if await read_events(store, Kind.NODE_DEAD, name)] == []
    # 10 Hz of all, and 40 Hz of the 16 that may hurry; all hurrying would be 1,600.
    assert rate < 10 * 24 + 40 * 16 + 100
