"""Engines behind a health check that stays green: only a token generated for the probe proves life.

Real sentinel, real gRPC, real HTTP; a FakeLlamaCpp plays the stuck engine (reported failures G1-01, G1-02, G1-04).
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

import aiohttp
import pytest

from engines import connect
from engines.base import Generation
from engines.llamacpp import open_session
from recovery import events
from recovery.registry import NodeState
from recovery.store import Store
from tests.integration.detectors.test_sentinel import read_events, sentinel, until, until_state
from tests.rigs.fake_agent import fake_agent
from tests.rigs.fake_llamacpp import Probe, fake_llamacpp

WITHIN_S = 10.0
"""Detection window of the reported failures."""
OFTEN = {"interval_s": (0.3, 0.5)}


@contextlib.asynccontextmanager
async def reading(url: str) -> AsyncIterator[list[float]]:
    """Read a stream of the engine beside everything else; yields the times of its pieces."""
    times: list[float] = []

    async def read() -> None:
        async with open_session() as session:
            order = Generation([1, 2, 3], max_tokens=1_000)
            async with contextlib.aclosing(connect("llamacpp", url, session).generate(order, 5.0)) as chunks:
                async for _ in chunks:
                    times.append(time.monotonic())

    task = asyncio.create_task(read())
    try:
        yield times
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize("then", ["mute", "empty", "frames"])
async def test_an_engine_that_makes_no_token_for_its_probes_is_dead_though_its_health_is_green(
    redis_url: str, store: Store, then: Probe
) -> None:
    """Silent, answering without a token, or sending bytes that hold none (cases G1-01, G1-04)."""
    async with fake_llamacpp() as engine, fake_agent("a") as agent, aiohttp.ClientSession() as session:
        agent.report.engine_url = engine.url
        await agent.join(store)
        async with sentinel(redis_url, probe=OFTEN):
            await until_state(store, NodeState.ALIVE)
            await until(lambda: engine.probes > 0)
            engine.probe, began = then, time.monotonic()
            dead = await until_state(store, NodeState.DEAD)
            assert time.monotonic() - began < WITHIN_S
            async with session.get(f"{engine.url}/health") as answer:
                assert answer.status == 200
            await asyncio.sleep(0.5)  # a second verdict would come now
            (verdict,) = await read_events(store, events.Kind.NODE_DEAD)
    assert verdict.fields["cause"] in ("hang", "unreachable")
    assert dead.weight == 0.0


@pytest.mark.parametrize("always", ["mute", "empty", "frames"])
async def test_an_engine_that_never_made_a_token_is_found_as_well(redis_url: str, store: Store, always: Probe) -> None:
    """A wrapper that fabricates its first frames has never been alive (case G1-04)."""
    async with fake_llamacpp(probe=always) as engine, fake_agent("a") as agent:
        agent.report.engine_url = engine.url
        await agent.join(store)
        async with sentinel(redis_url, probe=OFTEN):
            began = time.monotonic()
            await until_state(store, NodeState.DEAD)
            assert time.monotonic() - began < WITHIN_S


async def test_late_frames_of_other_requests_do_not_keep_a_stuck_engine_alive(redis_url: str, store: Store) -> None:
    """Its counter stands, its probe gets nothing, but an old buffer still trickles to a client (case G1-02)."""
    async with fake_llamacpp(token_s=0.2) as engine, fake_agent("a") as agent:
        agent.report.engine_url = engine.url
        await agent.join(store)
        async with sentinel(redis_url, probe=OFTEN), reading(engine.url) as pieces:
            await until_state(store, NodeState.ALIVE)
            await until(lambda: pieces and engine.probes > 0)
            engine.probe, began = "mute", time.monotonic()
            agent.report.running, agent.report.progress = 1, 99
            await until_state(store, NodeState.DEAD)
            assert time.monotonic() - began < WITHIN_S
            assert pieces[-1] > began + 0.3
            (verdict,) = await read_events(store, events.Kind.NODE_DEAD)
    assert verdict.fields["cause"] == "hang"


async def test_a_busy_engine_whose_probes_are_late_lives_as_long_as_its_counter_moves(
    redis_url: str, store: Store
) -> None:
    """A long prefill answers no probe for its whole length; frozen, the same engine is dead (case G4-02)."""
    async with fake_llamacpp() as engine, fake_agent("a") as agent:
        agent.report.engine_url = engine.url
        await agent.join(store)
        async with sentinel(redis_url, probe=OFTEN):
            await until_state(store, NodeState.ALIVE)
            await until(lambda: engine.probes > 0)
            engine.probe, agent.report.running, agent.report.waiting = "mute", 4, 1_276
            until_s = time.monotonic() + 4.0
            while time.monotonic() < until_s:
                agent.report.progress += 1
                await asyncio.sleep(0.2)
            assert await read_events(store, events.Kind.NODE_DEAD) == []
            began = time.monotonic()
            await until_state(store, NodeState.DEAD)
            assert time.monotonic() - began < WITHIN_S
