"""Micro-inference through a real engine: busy, stuck, refusing, gone."""

import asyncio
from pathlib import Path

import aiohttp
import pytest

from detectors.evidence import ProbeFailed, ProbeLate, ProbeNeutral, ProbePassed
from detectors.probes import probe
from recovery import events, registry
from recovery.registry import NodeState
from recovery.store import Store
from tests.integration.detectors.test_sentinel import read_events, sentinel, until_state
from tests.rigs.engine import free_port, running_engine
from tests.rigs.fake_agent import fake_agent


async def test_a_probe_tells_serving_stuck_and_gone_apart(tmp_path: Path) -> None:
    """One engine through its life."""
    async with running_engine(tmp_path, slots=1, context=256) as engine, aiohttp.ClientSession() as session:
        assert isinstance(await probe("llamacpp", engine.url, session, 10.0), ProbePassed)
        engine.stop()
        assert isinstance(await probe("llamacpp", engine.url, session, 0.5), ProbeLate)
        engine.cont()
        engine.kill9()
        engine.process.wait(10)
        assert isinstance(await probe("llamacpp", engine.url, session, 0.5), ProbeFailed)


@pytest.mark.parametrize(("status", "kind"), [(400, ProbeNeutral), (429, ProbeNeutral), (500, ProbeFailed)])
async def test_a_refusal_is_neutral_an_engines_error_is_not(
    status: int, kind: type[ProbeNeutral | ProbeFailed]
) -> None:
    """4xx speaks of our request, 5xx of the engine, which was reached: it counts from the first probe on."""

    async def refuse(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(f"HTTP/1.1 {status} X\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())
        await writer.drain()
        writer.close()

    port = free_port()
    server = await asyncio.start_server(refuse, "127.0.0.1", port)
    async with server, aiohttp.ClientSession() as session:
        said = await probe("llamacpp", f"http://127.0.0.1:{port}", session, 2.0)
    assert isinstance(said, kind)
    assert getattr(said, "answered", True)


async def test_an_unknown_engine_kind_is_neutral() -> None:
    """An older sentinel beside a newer agent."""
    async with aiohttp.ClientSession() as session:
        assert isinstance(await probe("newfangled", "http://127.0.0.1:1", session, 1.0), ProbeNeutral)


async def test_a_node_earns_its_traffic_back_and_loses_its_life_to_a_hang(
    redis_url: str, store: Store, tmp_path: Path
) -> None:
    """Probation with a real engine behind it, then SIGSTOP while idle: the agent sees nothing, the probe does."""
    quick = {"hold_s": 0.5, "step": 0.25, "step_interval_s": 0.1}
    async with running_engine(tmp_path, slots=1, context=256) as engine, fake_agent("a") as agent:
        agent.report.engine_url = engine.url
        await agent.join(store, NodeState.PROBATION)
        async with sentinel(redis_url, probation=quick, probe={"interval_s": (0.3, 0.5)}):
            node = await until_state(store, NodeState.ALIVE)
            assert node.weight == 1.0
            weights = [float(event.fields["weight"]) for event in await read_events(store, events.Kind.NODE_STATE)]
            assert weights[-4:] == [0.25, 0.5, 0.75, 1.0]
            engine.stop()
            dead = await until_state(store, NodeState.DEAD)
            (verdict,) = await read_events(store, events.Kind.NODE_DEAD)
            engine.cont()
    assert verdict.fields["cause"] == "hang"
    assert dead.weight == 0.0
    assert (await registry.get(store, "a")).cause == "hang"
