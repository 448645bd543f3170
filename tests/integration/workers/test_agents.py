"""Commands to an agent over real gRPC: each way they can fail has its own exception."""

import asyncio
import socket
import time

import pytest

from recovery.errors import StaleEpoch
from tests.rigs.fake_node import FakeNodeAgent, Script
from tests.rigs.ports import free_port
from workers.agents import Agent, AgentAway, AgentRefused


async def test_a_stale_command_is_told_the_current_epoch() -> None:
    """It comes in the reply's trailing metadata."""
    fake = FakeNodeAgent("a")
    fake.epoch = 9
    await fake.open()
    try:
        with pytest.raises(StaleEpoch) as refused:
            await Agent(fake.address, "a", 8, "j").reclaim()
        assert (refused.value.presented, refused.value.current) == (8, 9)
        assert (await Agent(fake.address, "a", 10, "j").fence()).epoch == 10
    finally:
        await fake.close()


async def test_an_engine_that_does_not_start_is_reported_in_its_own_words() -> None:
    """The agent's detail reaches the job."""
    fake = FakeNodeAgent("a", Script(start_errors=["address already in use: 8001"]))
    await fake.open()
    try:
        with pytest.raises(AgentRefused, match="address already in use: 8001"):
            await Agent(fake.address, "a", 1, "j").start(5.0)
        assert (await Agent(fake.address, "a", 1, "j").start(5.0)).engine_pid > 0
    finally:
        await fake.close()


async def test_an_agent_that_is_not_there_or_not_known_is_away() -> None:
    """At once, by its address or by its absence."""
    address = f"127.0.0.1:{free_port()}"
    with pytest.raises(AgentAway, match=address):
        await Agent(address, "a", 1, "j").fence()
    with pytest.raises(AgentAway, match="no agent registered"):
        await Agent("", "a", 1, "j").fence()


async def test_a_silent_agent_is_away_after_the_deadline() -> None:
    """A fence waits half a second at most: epochs protect without it."""
    async with asyncio.timeout(10):
        # It listens and never accepts, as a stopped process does.
        with socket.create_server(("127.0.0.1", 0)) as silent:
            began = time.monotonic()
            with pytest.raises(AgentAway):
                await Agent(f"127.0.0.1:{silent.getsockname()[1]}", "a", 1, "j").fence()
            assert time.monotonic() - began < 5.0


async def test_a_repeated_start_joins_the_one_under_way() -> None:
    """What a takeover from a lost worker relies on."""
    fake = FakeNodeAgent("a", Script(start_s=0.3))
    await fake.open()
    try:
        agent = Agent(fake.address, "a", 1, "j")
        first, second = await asyncio.gather(agent.start(5.0), agent.start(5.0))
        assert first == second
        assert (fake.called("Start"), fake.starts) == (2, 1)
    finally:
        await fake.close()
