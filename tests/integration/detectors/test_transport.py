"""What a transport hides or invents: stopped peers, blocked loops, GOAWAYs, our own absence (reported failures G7-*).

Each agent here is a process of its own; the sentinel and the connections are real.
"""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator, Sequence

import grpc
import grpc.aio
import pytest

from protocol import unbroken_pb2 as pb
from protocol import unbroken_pb2_grpc as rpc
from protocol.channel import SERVER_OPTIONS, open_channel
from recovery import events
from recovery.registry import NodeState
from recovery.store import Store
from tests.integration.detectors.test_process import start
from tests.integration.detectors.test_sentinel import read_events, sentinel, until, until_state
from tests.rigs.fake_agent import FakeAgent, fake_agent
from tests.rigs.lone_agent import lone_agent

WITHIN_S = 10.0
"""Detection window of the reported failures; gRPC's own keepalive may take a minute."""
NAP_S = 12.0
NO_KEEPALIVE_RULES = (("grpc.so_reuseport", 0),)


@pytest.mark.parametrize("fault", [signal.SIGSTOP, signal.SIGUSR1], ids=["stopped process", "blocked loop"])
async def test_an_agent_that_answers_nothing_is_found_in_time_whatever_its_transport_says(
    redis_url: str, store: Store, fault: signal.Signals
) -> None:
    """Stopped, its sockets stay open; blocked, its native threads even answer pings (cases G7-01, G7-02)."""
    async with lone_agent(redis_url) as pid, sentinel(redis_url):
        await until_state(store, NodeState.ALIVE)
        began = time.monotonic()
        os.kill(pid, fault)
        await until_state(store, NodeState.DEAD)
        assert time.monotonic() - began < WITHIN_S
        (verdict,) = await read_events(store, events.Kind.NODE_DEAD)
    assert verdict.fields["cause"] in ("agent", "lease")


async def test_a_sentinel_stopped_for_long_kills_nobody_when_it_wakes(redis_url: str, store: Store) -> None:
    """Five agents beat on meanwhile; what it missed is its own gap, which it logs (case G4-06)."""
    names = "abcde"
    async with contextlib.AsyncExitStack() as stack:
        agents = [await stack.enter_async_context(fake_agent(name)) for name in names]
        for agent in agents:
            await agent.join(store)
        process = await start(UNBROKEN_REDIS__URL=redis_url)
        try:
            for name in names:
                await until_state(store, NodeState.ALIVE, name)
            # When
            process.send_signal(signal.SIGSTOP)
            await asyncio.sleep(NAP_S)
            process.send_signal(signal.SIGCONT)
            pings = [agent.pings for agent in agents]
            await until(lambda: all(agent.pings > before + 30 for agent, before in zip(agents, pings, strict=True)))
            # Then
            for name in names:
                assert await read_events(store, events.Kind.NODE_DEAD, name) == []
                await until_state(store, NodeState.ALIVE, name)
            process.terminate()
            _, said = await asyncio.wait_for(process.communicate(), 10)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    assert '"event": "sentinel.slept"' in said.decode()


@contextlib.asynccontextmanager
async def idle_stream(
    options: Sequence[tuple[str, int]],
) -> AsyncIterator["grpc.aio.StreamStreamCall[pb.Ping, pb.Beat]"]:
    """Open a Watch stream as our client does, to a server with these options, over which nothing is sent."""
    server = grpc.aio.server(options=list(options))
    rpc.add_AgentServicer_to_server(FakeAgent("a"), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with open_channel(f"127.0.0.1:{port}") as channel:
            call = rpc.AgentStub(channel).Watch()
            yield call
            call.cancel()
    finally:
        await server.stop(None)


async def test_pings_in_silence_are_allowed_by_our_servers() -> None:
    """An idle stream to a server with defaults is closed for too many pings; to ours it is not (case G7-03)."""
    async with idle_stream(NO_KEEPALIVE_RULES) as foreign, idle_stream(SERVER_OPTIONS) as ours:
        reading = asyncio.create_task(_first(ours))
        with pytest.raises(grpc.aio.AioRpcError, match=r"(?i)too many pings"):
            await asyncio.wait_for(_first(foreign), 30)
        # Two more pings' time than the other had
        await asyncio.wait([reading], timeout=4)
        assert not reading.done()
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


async def _first(call: "grpc.aio.StreamStreamCall[pb.Ping, pb.Beat]") -> None:
    async for _ in call:
        return


async def test_a_stream_that_is_closed_again_and_again_kills_nobody(redis_url: str, store: Store) -> None:
    """A GOAWAY, a proxy's reset: reconnected, and no evidence of a death (case G7-03)."""
    async with fake_agent("a") as agent:
        await agent.join(store)
        async with sentinel(redis_url):
            await until_state(store, NodeState.ALIVE)
            for _ in range(4):
                streams = agent.streams
                agent.break_streams()
                await until(lambda before=streams: agent.streams > before)  # type: ignore[misc]
            pings = agent.pings
            await until(lambda: agent.pings > pings + 10)
            assert await read_events(store, events.Kind.NODE_DEAD) == []
            await until_state(store, NodeState.ALIVE)
