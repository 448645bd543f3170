"""A sentinel's figures over HTTP."""

import asyncio
import re
import socket

import aiohttp
import pytest

from detectors.sentinel import run
from protocol import unbroken_pb2 as pb
from recovery.config import load
from recovery.errors import SettingsError
from recovery.registry import NodeState
from recovery.store import Store
from tests.integration.detectors.test_sentinel import sentinel, until, until_state
from tests.rigs.fake_agent import fake_agent
from tests.rigs.ports import free_port


async def read_figures(port: int) -> dict[str, float]:
    """Fetch `/metrics`."""
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}/metrics") as answer:
        lines = (await answer.text()).splitlines()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if re.match("unbroken", line))}


async def test_a_death_is_counted_by_cause_with_the_time_it_took_to_detect(redis_url: str, store: Store) -> None:
    """From the last sign of life to the verdict."""
    port = free_port()
    async with fake_agent("a") as agent, fake_agent("b") as other:
        await agent.join(store)
        await other.join(store)
        async with sentinel(redis_url, sentinel={"metrics_port": port}):
            await until_state(store, NodeState.ALIVE, "a")
            await until_state(store, NodeState.ALIVE, "b")
            before = await until(lambda: read_figures(port), lambda now: now["unbroken_nodes_watched"] == 2)
            agent.report.phase, agent.report.ready = pb.PHASE_DOWN, False
            agent.notify(pb.NOTICE_KIND_ENGINE_DOWN, "process_exit", "pidfd")
            await other.stop()
            await until_state(store, NodeState.DEAD, "a")
            await until_state(store, NodeState.DEAD, "b")
            after = await until(
                lambda: read_figures(port), lambda now: now.get('unbroken_deaths_total{cause="link"}') == 1
            )
    assert before["unbroken_blind"] == 0
    assert before["unbroken_nodes_primary"] == 2
    assert after['unbroken_deaths_total{cause="process_exit"}'] == 1
    for cause in ("process_exit", "link"):
        assert after[f'unbroken_detection_seconds_count{{cause="{cause}"}}'] == 1
        assert 0 <= after[f'unbroken_detection_seconds_sum{{cause="{cause}"}}'] < 10


async def test_a_port_that_is_taken_is_refused_by_the_settings_name(redis_url: str) -> None:
    """Rather than a sentinel nobody can look into."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        settings = load(redis={"url": redis_url}, sentinel={"metrics_port": taken.getsockname()[1]})
        with pytest.raises(SettingsError, match=r"sentinel\.metrics_port"):
            await run(settings, asyncio.Event())
