"""The two questions beside the stream: does the host take a connection, does the agent answer on one."""

import asyncio
import os
import signal
import socket
from collections.abc import Iterator

import pytest

from detectors.evidence import HostAnswered, HostSilent, SecondPathAnswered, SecondPathFailed
from detectors.secondpath import ask_status, knock
from recovery.registry import get
from recovery.store import Store
from tests.rigs.fake_agent import fake_agent
from tests.rigs.lone_agent import lone_agent
from tests.rigs.ports import free_port

LONG_S = 10.0


@pytest.fixture
def full_host() -> Iterator[str]:
    """An address whose kernel drops what is sent to it: a listener with its queue full answers no more."""
    with socket.socket() as listener, socket.socket() as first, socket.socket() as second:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for client in (first, second):
            client.setblocking(False)
            client.connect_ex(listener.getsockname())
        yield f"127.0.0.1:{listener.getsockname()[1]}"


async def test_the_host_of_a_stopped_agent_takes_connections_though_the_agent_says_nothing(
    redis_url: str, store: Store
) -> None:
    """That is what tells a stopped agent from a dead link."""
    async with lone_agent(redis_url) as pid:
        address = (await get(store, "a")).agent
        os.kill(pid, signal.SIGSTOP)
        assert await knock(address, LONG_S, 0.1) == HostAnswered()
        assert isinstance(await ask_status("a", address, None, 0.3), SecondPathFailed)


async def test_a_refused_connection_is_an_answer_at_once() -> None:
    """Nothing listens there any more; nobody has to wait for a deadline."""
    said = await asyncio.wait_for(knock(f"127.0.0.1:{free_port()}", 60.0, 0.1), LONG_S)
    assert isinstance(said, HostSilent)
    assert said.refused
    assert "connection refused" in said.detail


async def test_a_host_that_takes_nothing_is_silent_after_the_deadline_and_was_asked_more_than_once(
    full_host: str,
) -> None:
    """One lost packet proves nothing."""
    said = await knock(full_host, 0.2, 0.02)
    assert isinstance(said, HostSilent)
    assert not said.refused
    tries = int(said.detail.partition(" ms, ")[2].split()[0])
    assert tries > 1


async def test_a_host_that_takes_a_later_try_is_there() -> None:
    """The first packets were lost; here: its listener comes while it is being asked."""
    port = free_port()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", port))
        listener.listen(0)
        crowd = [socket.socket() for _ in range(2)]
        for client in crowd:
            client.setblocking(False)
            client.connect_ex(("127.0.0.1", port))
        asking = asyncio.create_task(knock(f"127.0.0.1:{port}", LONG_S, 0.05))
        await asyncio.sleep(0.2)
        assert not asking.done()
        for _ in crowd:
            listener.accept()[0].close()
        assert await asking == HostAnswered()
        for client in crowd:
            client.close()


@pytest.mark.parametrize("address", ["nowhere.invalid:80", "nonsense", ""])
async def test_an_address_that_leads_nowhere_is_silent_with_the_reason(address: str) -> None:
    """A wrong name in the registry is no refusal: no host has said anything."""
    said = await knock(address, 0.3, 0.1)
    assert isinstance(said, HostSilent)
    assert not said.refused
    assert said.detail


async def test_an_agent_answers_with_its_report_and_only_for_its_own_node() -> None:
    """Its address may have been given to another node's agent since."""
    async with fake_agent("a") as agent:
        said = await ask_status("a", agent.address, None, LONG_S)
        assert isinstance(said, SecondPathAnswered)
        assert said.report is not None
        other = await ask_status("b", agent.address, None, LONG_S)
    assert other == SecondPathFailed("the agent there is node a's")


async def test_a_refused_token_is_an_answer() -> None:
    """The agent lives; the settings are wrong."""
    async with fake_agent("a", token="ours") as agent:  # noqa: S106 - a test's token
        assert await ask_status("a", agent.address, "theirs", LONG_S) == SecondPathAnswered()
