"""A Watch stream as a sentinel holds it: pings on demand, beats collected."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import grpc.aio

from protocol import unbroken_pb2 as pb
from protocol import unbroken_pb2_grpc as rpc
from tests.rigs.agent import RunningAgent


class Watching:
    """One stream to one agent."""

    def __init__(self, stub: rpc.AgentStub) -> None:
        self._call = stub.Watch()
        self._seq = 0

    async def ping(self) -> pb.Pong:
        """Send a ping and return its pong; notices before it fail the test."""
        self._seq += 1
        await self._call.write(pb.Ping(seq=self._seq, sent_ns=17, sentinel="test"))
        beat = await asyncio.wait_for(self._call.read(), 5)
        assert beat.WhichOneof("kind") == "pong", beat
        assert beat.pong.seq == self._seq
        pong: pb.Pong = beat.pong
        return pong

    async def notice(self, timeout: float = 10.0) -> pb.Notice:
        """Wait for the next notice."""
        beat = await asyncio.wait_for(self._call.read(), timeout)
        assert beat is not grpc.aio.EOF
        assert beat.WhichOneof("kind") == "notice", beat
        notice: pb.Notice = beat.notice
        return notice

    def close(self) -> None:
        """End the stream."""
        self._call.cancel()


@contextlib.asynccontextmanager
async def watching(agent: RunningAgent) -> AsyncIterator[Watching]:
    """Hold a Watch stream."""
    watch = Watching(await agent.stub())
    try:
        yield watch
    finally:
        watch.close()
