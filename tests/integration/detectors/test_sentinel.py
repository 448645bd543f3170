"""The sentinel against a FakeAgent over real gRPC, and a real Redis-compatible server."""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncGenerator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import structlog

from detectors.sentinel import run
from protocol import unbroken_pb2 as pb
from recovery import events, leases, registry
from recovery.config import Settings, load
from recovery.registry import NodeState
from recovery.store import EVENTS, HEARTBEATS, Store, node_key
from tests.rigs.fake_agent import FakeAgent, fake_agent
from tests.rigs.valkey import Valkey

PATIENCE_S = 20.0


def sentinel(url: str, **sections: Any) -> "contextlib.AbstractAsyncContextManager[None]":
    """Run a sentinel with some sections of the settings changed."""
    return sentinel_with(load(redis={"url": url}, **sections))


@contextlib.asynccontextmanager
async def sentinel_with(settings: Settings) -> AsyncGenerator[None]:
    """Run a sentinel; it must end within seconds once told to."""
    stop = asyncio.Event()
    task = asyncio.create_task(run(settings, stop))
    try:
        yield
        assert not task.done(), "the sentinel must not end by itself"
    finally:
        stop.set()
        assert await asyncio.wait_for(task, 10) == 0


async def read_events(store: Store, kind: events.Kind, node: str = "a") -> list[events.Event]:
    """Return the events of a kind about a node so far."""
    entries = events.parse(await store.redis.xrange(EVENTS))
    return [event for event in entries if event.kind == kind and event.node == node]


async def until(what: Callable[[], Any], accept: Callable[[Any], Any] = bool) -> Any:
    """Poll until an answer is accepted; return it."""
    end = time.monotonic() + PATIENCE_S
    while True:
        answer = what()
        if asyncio.iscoroutine(answer):
            answer = await answer
        if accept(answer):
            return answer
        assert time.monotonic() < end, f"not within {PATIENCE_S} s; the last was {answer}"
        await asyncio.sleep(0.02)


async def until_state(store: Store, state: NodeState, node: str = "a") -> registry.Node:
    """Wait for a node's state in the registry."""
    found: registry.Node = await until(lambda: registry.get(store, node), lambda known: known.state is state)
    return found


@pytest.fixture
async def agent() -> AsyncGenerator[FakeAgent]:
    """Node a's agent."""
    async with fake_agent("a") as agent:
        yield agent


async def test_a_node_that_serves_becomes_alive_with_full_weight(
    redis_url: str, store: Store, agent: FakeAgent
) -> None:
    """A fresh start needs no probation, whether the node or the sentinel came first."""
    await agent.join(store)
    async with sentinel(redis_url), fake_agent("b") as other:
        node = await until_state(store, NodeState.ALIVE)
        await other.join(store)
        later = await until_state(store, NodeState.ALIVE, "b")
    assert (node.weight, later.weight) == (1.0, 1.0)


async def test_an_engine_down_notice_becomes_a_verdict(redis_url: str, store: Store, agent: FakeAgent) -> None:
    """The event says who, which epoch, why, on what evidence, when; the registry follows."""
    await agent.join(store)
    async with sentinel(redis_url):
        await until_state(store, NodeState.ALIVE)
        before_ms = int(time.time() * 1_000)
        agent.report.phase, agent.report.ready = pb.PHASE_DOWN, False
        agent.notify(pb.NOTICE_KIND_ENGINE_DOWN, "process_exit", "robust mutex: owner died; pid 4711 signal 9")
        node = await until_state(store, NodeState.DEAD)
        (verdict,) = await read_events(store, events.Kind.NODE_DEAD)
    assert verdict.epoch == 1
    assert verdict.fields["cause"] == "process_exit"
    assert verdict.fields["evidence"] == "robust mutex: owner died; pid 4711 signal 9"
    assert before_ms <= int(verdict.fields["detected_ms"]) <= int(time.time() * 1_000)
    assert verdict.fields["sentinel"]
    assert (node.weight, node.cause) == (0.0, "process_exit")


async def test_a_death_whose_fence_redis_lost_is_told_again(redis_url: str, store: Store, agent: FakeAgent) -> None:
    """Redis came back before the death: no job, no fence, and the node ALIVE although its engine is gone."""
    await agent.join(store)
    async with sentinel(redis_url):
        await until_state(store, NodeState.ALIVE)
        keys = (node_key("a"), node_key("a", "epoch"), node_key("a", "lease"))
        before = {key: await store.raw.dump(key) for key in keys}
        agent.report.phase, agent.report.ready = pb.PHASE_DOWN, False
        agent.notify(pb.NOTICE_KIND_ENGINE_DOWN, "process_exit", "pidfd")
        await until_state(store, NodeState.DEAD)
        await leases.fence(store, "a", 1, "a.1")
        await events.publish(store, events.Kind.NODE_STATE, {"node": "a", "epoch": 2, "state": "RECOVERING"})
        with structlog.testing.capture_logs() as logs:
            await until(lambda: any(entry["event"] == "sentinel.new_epoch" for entry in logs))
        # When Redis forgets all of it
        await store.redis.delete(EVENTS)
        for key, value in before.items():
            await store.raw.restore(key, 0, value, replace=True)
        # Then
        await until_state(store, NodeState.DEAD)
        (verdict, *_) = await until(lambda: read_events(store, events.Kind.NODE_DEAD))
    assert (verdict.epoch, verdict.fields["cause"]) == (1, "process_exit")


async def test_an_agent_that_is_silent_for_long_is_dead_though_its_host_answers(
    redis_url: str, store: Store, agent: FakeAgent
) -> None:
    """Its connections stand, its lease is held, its host takes new connections; it says nothing on any of them."""
    await agent.join(store)
    async with sentinel(redis_url):
        await until_state(store, NodeState.ALIVE)
        await until(lambda: agent.pings > 10)
        agent.silent = True
        await until_state(store, NodeState.DEAD)
        (verdict,) = await read_events(store, events.Kind.NODE_DEAD)
    assert verdict.fields["cause"] == "agent"
    assert "its host answers" in verdict.fields["evidence"]
    assert float(verdict.fields["took_ms"]) > 1_000


async def test_an_agent_that_vanished_is_dead_by_its_link(redis_url: str, store: Store, agent: FakeAgent) -> None:
    """Stream broken, port closed."""
    await agent.join(store)
    async with sentinel(redis_url):
        await until_state(store, NodeState.ALIVE)
        await agent.stop()
        await until_state(store, NodeState.DEAD)
        (verdict,) = await read_events(store, events.Kind.NODE_DEAD)
    assert verdict.fields["cause"] == "link"
    assert "connection refused" in verdict.fields["evidence"]


async def test_an_agent_that_stops_in_good_order_is_no_death(redis_url: str, store: Store, agent: FakeAgent) -> None:
    """STOPPING first, then it is gone."""
    await agent.join(store)
    async with sentinel(redis_url):
        await until_state(store, NodeState.ALIVE)
        agent.notify(pb.NOTICE_KIND_STOPPING)
        await until_state(store, NodeState.STOPPED)
        await agent.stop()
        await asyncio.sleep(2.0)  # long enough for a verdict, were there one
        assert await read_events(store, events.Kind.NODE_DEAD) == []


async def test_pongs_that_become_slow_kill_nobody(redis_url: str, store: Store, agent: FakeAgent) -> None:
    """300 ms against a deadline of 80: the second path answers, then the deadline has followed the link."""
    await agent.join(store)
    async with sentinel(redis_url):
        await until_state(store, NodeState.ALIVE)
        await until(lambda: agent.pings > 10)
        agent.pong_delay_s = 0.3
        asked = agent.status_calls
        await until(lambda: registry.get(store, "a"), lambda node: node.rtt_us > 250_000)
        await until_state(store, NodeState.ALIVE)
        settled = agent.status_calls
        pings = agent.pings
        await until(lambda: agent.pings > pings + 20)
        assert await read_events(store, events.Kind.NODE_DEAD) == []
        assert settled > asked
        assert agent.status_calls - settled <= 2


async def test_an_expired_lease_is_published_once_and_kills_nobody_who_answers(
    redis_url: str, store: Store, agent: FakeAgent
) -> None:
    """The agent cannot renew, but says on direct question that it lives."""
    await agent.join(store, lease_ms=600)
    async with sentinel(redis_url, lease={"lease_timeout_ms": 600, "renew_interval_ms": 100}):
        await until_state(store, NodeState.ALIVE)
        agent.let_lease_lapse()
        (expired,) = await until(lambda: read_events(store, events.Kind.LEASE_EXPIRED))
        assert expired.epoch == 1
        await until(lambda: agent.status_calls >= 1)
        await asyncio.sleep(1.0)  # ten more looks at the leases
        assert len(await read_events(store, events.Kind.LEASE_EXPIRED)) == 1
        assert await read_events(store, events.Kind.NODE_DEAD) == []


async def test_an_expiry_is_found_just_after_it_happened_on_redis_own_clock(redis_url: str, store: Store) -> None:
    """Not at some next look: three of six leases, one after the other."""
    late_ms = []
    async with contextlib.AsyncExitStack() as stack:
        agents = [await stack.enter_async_context(fake_agent(name)) for name in "abcdef"]
        for agent in agents:
            await agent.join(store, lease_ms=600)
        await stack.enter_async_context(sentinel(redis_url, lease={"lease_timeout_ms": 600, "renew_interval_ms": 100}))
        for agent in agents:
            await until_state(store, NodeState.ALIVE, agent.node)
        for agent in agents[:3]:
            agent.let_lease_lapse()
            seconds, micros = await store.redis.time()
            lapse_ms = seconds * 1_000 + micros / 1_000 + await leases.remaining_ms(store, agent.node)
            (expired,) = await until(partial(read_events, store, events.Kind.LEASE_EXPIRED, agent.node))
            late_ms.append(int(expired.id.partition("-")[0]) - lapse_ms)
    assert min(late_ms) < 100.0, "looked at when due, some look is in time whatever else the machine does"
    assert max(late_ms) < 2_000.0


async def test_a_wrong_token_is_logged_once_and_kills_nobody(redis_url: str, store: Store, tmp_path: Path) -> None:
    """An error in the settings is for a human."""
    token = tmp_path / "token"
    token.write_text("theirs")
    async with fake_agent("a", token="ours") as agent:  # noqa: S106 - a test's token
        await agent.join(store, NodeState.ALIVE, weight=1.0)
        with structlog.testing.capture_logs() as logs:
            async with sentinel(redis_url, auth={"agent_token_file": token}):
                await until(lambda: [line for line in logs if line["event"] == "sentinel.token_rejected"])
                await asyncio.sleep(2.0)
                assert await read_events(store, events.Kind.NODE_DEAD) == []
        rejected = [line for line in logs if line["event"] == "sentinel.token_rejected"]
    assert len(rejected) == 1
    assert rejected[0]["node"] == "a"


async def test_heartbeats_come_once_a_second_not_with_each_ping(redis_url: str, store: Store, agent: FakeAgent) -> None:
    """Ten pings, one entry; and the registry has the routing figures."""
    agent.report.running, agent.report.free_ratio = 3, 0.5
    await agent.join(store)
    async with sentinel(redis_url):
        await until_state(store, NodeState.ALIVE)
        began, pings = time.monotonic(), agent.pings
        count = await store.redis.xlen(HEARTBEATS)
        await until(lambda: agent.pings >= pings + 30)
        beats = await store.redis.xlen(HEARTBEATS) - count
        took = time.monotonic() - began
        node = await until(lambda: registry.get(store, "a"), lambda known: known.score > 0)
        ((_, last),) = await store.redis.xrevrange(HEARTBEATS, count=1)
    assert 1 <= beats <= took + 1.5
    assert (node.running, node.free_ratio) == (3, 0.5)
    assert 15.0 < node.score < 100.0
    expected = {"node", "epoch", "state", "rtt_us", "ewma_us", "jitter_us", "misses", "running", "waiting"}
    assert expected | {"free_ratio", "progress", "phase"} <= set(last)
    assert (last["node"], last["phase"]) == ("a", "SERVING")


async def test_a_new_sentinel_publishes_the_standing_deaths_again(
    redis_url: str, store: Store, agent: FakeAgent
) -> None:
    """The first one may have died between verdict and event."""
    await agent.join(store, NodeState.DEAD, cause="hang", evidence="counter still", dead_ms=1_234)
    async with sentinel(redis_url):
        (verdict,) = await until(lambda: read_events(store, events.Kind.NODE_DEAD))
    assert verdict.fields["cause"] == "hang"
    assert verdict.fields["evidence"] == "counter still"
    assert verdict.fields["detected_ms"] == "1234"


async def test_a_recovered_node_serves_its_probation(redis_url: str, store: Store, agent: FakeAgent) -> None:
    """Fence, new epoch, PROBATION set by a job; without one passed probe there is no weight."""
    await agent.join(store)
    async with sentinel(redis_url, probation={"hold_s": 0.2, "step": 0.5, "step_interval_s": 0.1}):
        await until_state(store, NodeState.ALIVE)
        agent.notify(pb.NOTICE_KIND_ENGINE_DOWN, "process_exit", "gone")
        await until_state(store, NodeState.DEAD)
        agent.let_lease_lapse()
        epoch = await leases.fence(store, "a", 1, "job-1")
        agent.report.epoch = epoch
        await registry.set_state(store, "a", epoch, NodeState.PROBATION)
        await asyncio.sleep(1.5)  # the FakeAgent has no engine that could pass a probe
        node = await registry.get(store, "a")
        assert len(await read_events(store, events.Kind.NODE_DEAD)) == 1
    assert (node.state, node.weight, node.epoch) == (NodeState.PROBATION, 0.0, 2)


async def test_all_links_gone_at_once_is_blindness(redis_url: str, store: Store, agent: FakeAgent) -> None:
    """Two agents mute in the same moment, without proof: nobody is declared dead until one is back."""
    async with fake_agent("b") as other:
        await agent.join(store)
        await other.join(store)
        async with sentinel(redis_url):
            await until_state(store, NodeState.ALIVE)
            await until_state(store, NodeState.ALIVE, "b")
            await until(lambda: min(agent.pings, other.pings) > 10)
            agent.silent = other.silent = True
            await until_state(store, NodeState.SUSPECT)
            await asyncio.sleep(2.5)
            assert await read_events(store, events.Kind.NODE_DEAD) == []
            other.silent = False
            await until_state(store, NodeState.DEAD)
            await until_state(store, NodeState.ALIVE, "b")


async def test_a_stopped_redis_kills_nobody_and_proof_is_published_when_it_is_back(own_valkey: Valkey) -> None:
    """Leases lapse meanwhile, and an engine dies meanwhile: only the latter counts."""
    store = Store(own_valkey.url)
    async with fake_agent("a") as agent, fake_agent("b") as other:
        await agent.join(store, lease_ms=1_500)
        await other.join(store, lease_ms=1_500)
        settings = {"timeout_ms": 300, "url": own_valkey.url}
        async with sentinel_with(load(redis=settings, lease={"lease_timeout_ms": 1_500})):
            await until_state(store, NodeState.ALIVE)
            await until_state(store, NodeState.ALIVE, "b")
            os.kill(own_valkey.pid, signal.SIGSTOP)
            try:
                agent.notify(pb.NOTICE_KIND_ENGINE_DOWN, "process_exit", "gone")
                agent.report.phase = pb.PHASE_DOWN
                await asyncio.sleep(4.0)
            finally:
                os.kill(own_valkey.pid, signal.SIGCONT)
            await until_state(store, NodeState.DEAD)
            await asyncio.sleep(1.0)
            node = await registry.get(store, "b")
            deaths = await read_events(store, events.Kind.NODE_DEAD)
            others = await read_events(store, events.Kind.NODE_DEAD, "b")
    await store.aclose()
    assert deaths
    assert others == []
    assert node.state is NodeState.ALIVE


async def test_a_sentinel_may_start_before_redis_does(own_valkey: Valkey) -> None:
    """It waits, and then finds its nodes."""
    own_valkey.stop()
    store = Store(own_valkey.url)
    async with fake_agent("a") as agent, sentinel(own_valkey.url):
        await asyncio.sleep(0.5)
        own_valkey.start()
        await agent.join(store)
        await until_state(store, NodeState.ALIVE)
    await store.aclose()


async def test_a_redis_that_comes_back_empty_is_told_again(own_valkey: Valkey) -> None:
    """The agent registers anew, under its old epoch; nobody dies of it."""
    store = Store(own_valkey.url)
    async with fake_agent("a") as agent, sentinel(own_valkey.url):
        await agent.join(store)
        await until_state(store, NodeState.ALIVE)
        agent.let_lease_lapse()
        await store.redis.flushall()
        await agent.join(store)
        node = await until_state(store, NodeState.ALIVE)
        assert await read_events(store, events.Kind.NODE_DEAD) == []
    await store.aclose()
    assert node.weight == 1.0
