"""Sentinel, real agent, real engine: killed, and frozen under traffic."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncGenerator
from pathlib import Path

from engines import connect
from engines.base import EngineError, Generation
from engines.llamacpp import open_session
from protocol import unbroken_pb2 as pb
from recovery import events
from recovery.registry import NodeState
from recovery.store import Store
from tests.integration.detectors.test_sentinel import read_events, sentinel, until, until_state
from tests.rigs.agent import RunningAgent, running_agent


async def test_an_engine_killed_under_its_agent_is_dead_with_proof(
    redis_url: str, store: Store, tmp_path: Path
) -> None:
    """SIGKILL: the agent says so by itself, nobody has to time out."""
    async with running_agent(redis_url, tmp_path) as agent, sentinel(redis_url):
        await agent.serving()
        await until_state(store, NodeState.ALIVE)
        report = await agent.status()
        os.kill(report.engine_pid, signal.SIGKILL)
        dead = await until_state(store, NodeState.DEAD)
        (verdict,) = await read_events(store, events.Kind.NODE_DEAD)
    assert verdict.fields["cause"] == "process_exit"
    assert (verdict.epoch, dead.weight) == (report.epoch, 0.0)


async def test_an_engine_frozen_under_traffic_is_dead_by_hang_and_a_working_one_is_not(
    redis_url: str, store: Store, tmp_path: Path
) -> None:
    """Its process lives and its port accepts; its counter and our own token say what is wrong."""
    async with running_agent(redis_url, tmp_path) as agent, sentinel(redis_url):
        await agent.serving()
        await until_state(store, NodeState.ALIVE)
        async with traffic((await agent.status()).engine_url):
            report = await until_pending(agent)
            moved = report.progress + 30
            await until(agent.status, lambda now: now.progress >= moved)
            assert await read_events(store, events.Kind.NODE_DEAD) == []
            os.kill(report.engine_pid, signal.SIGSTOP)
            try:
                await until_state(store, NodeState.DEAD)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(report.engine_pid, signal.SIGCONT)
        (verdict,) = await read_events(store, events.Kind.NODE_DEAD)
    assert verdict.fields["cause"] == "hang"


async def until_pending(agent: RunningAgent) -> pb.NodeReport:
    """Wait until the agent sees work in its engine."""
    report: pb.NodeReport = await until(agent.status, lambda now: now.running > 0)
    return report


@contextlib.asynccontextmanager
async def traffic(url: str) -> AsyncGenerator[None]:
    """Keep the engine generating."""

    async def generate() -> None:
        async with open_session() as session:
            engine = connect("llamacpp", url, session)
            while True:
                order = Generation(list(range(1, 40)), max_tokens=400, sampling={"ignore_eos": True, "temperature": 0})
                try:
                    async with contextlib.aclosing(engine.generate(order, 10.0)) as chunks:
                        async for _ in chunks:
                            pass
                except EngineError:
                    await asyncio.sleep(0.2)

    task = asyncio.create_task(generate())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
