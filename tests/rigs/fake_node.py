"""A node without an engine: a real gRPC agent whose behaviour a test writes down beforehand.

Everything else about it is real: its registry entry, its epoch in Redis, its fencing, its joining of repeated commands.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio

from protocol.channel import SERVER_OPTIONS, STALE_EPOCH_KEY
from protocol.unbroken_pb2 import Command, NodeReport, ReclaimReply, StartReply, StatusRequest, WarmUpReply
from protocol.unbroken_pb2_grpc import AgentServicer, add_AgentServicer_to_server
from recovery import leases, registry
from recovery.registry import NodeState
from recovery.store import Store
from tests.rigs.ports import free_port


@dataclass(slots=True)
class Script:
    """What the fake does; every field may be changed while it runs."""

    start_s: float = 0.05
    """Time a start takes."""
    start_errors: list[str] = field(default_factory=list)
    """Messages of the next starts that fail, first one first."""
    reclaim_s: float = 0.0
    nothing_left: bool = True
    reclaim_detail: str = ""
    warm_up_s: float = 0.0
    warm_up_errors: list[str] = field(default_factory=list)
    """Messages of the next warm-ups that fail; each takes its engine with it."""


class FakeNodeAgent(AgentServicer):
    """An agent in this process, serving on loopback."""

    def __init__(self, node: str, script: Script | None = None) -> None:
        self.node = node
        self.script = script or Script()
        self.port = free_port()
        self.epoch = 0
        self.calls: list[tuple[str, int]] = []
        """Every command that arrived: (name, epoch)."""
        self.starts = 0
        """Engines really started; repeated commands that joined one are only in `calls`."""
        self._start: asyncio.Task[StartReply] | None = None
        self._start_epoch = 0
        self._server: grpc.aio.Server | None = None

    @property
    def address(self) -> str:
        """host:port of the fake."""
        return f"127.0.0.1:{self.port}"

    def called(self, name: str) -> int:
        """Return how often a command arrived."""
        return sum(1 for call, _ in self.calls if call == name)

    async def register(self, store: Store, **fields: Any) -> int:
        """Take an epoch as a starting agent does, register as ALIVE and return the epoch."""
        boot = await leases.boot(store, self.node, f"fake-{self.node}", self.epoch, 0, 600_000)
        self.epoch = boot.epoch
        known: dict[str, Any] = {
            "state": NodeState.ALIVE.value, "weight": 1.0, "agent": self.address, "model": "m", "identity": "m@1",
            "kind": "llamacpp", "engine_url": f"http://127.0.0.1:1/{self.node}", "slots": 4, "context": 2_048,
        }  # fmt: skip
        await registry.register(store, self.node, self.epoch, {**known, **fields})
        return self.epoch

    async def open(self) -> None:
        """Start serving (again, on the same port)."""
        self._server = grpc.aio.server(options=list(SERVER_OPTIONS))
        add_AgentServicer_to_server(self, self._server)
        self._server.add_insecure_port(self.address)
        await self._server.start()

    async def close(self) -> None:
        """Stop serving at once."""
        if self._server is not None:
            await self._server.stop(None)
            self._server = None
        if self._start is not None:
            self._start.cancel()
            await asyncio.gather(self._start, return_exceptions=True)

    async def Status(self, request: StatusRequest, context: Any) -> NodeReport:  # noqa: N802, ARG002 - gRPC's signature
        """Answer the direct question."""
        return NodeReport(node=self.node, epoch=self.epoch)

    async def Fence(self, request: Command, context: Any) -> NodeReport:  # noqa: N802 - gRPC's name
        """Refuse older epochs from now on."""
        await self._admit("Fence", request, context)
        return NodeReport(node=self.node, epoch=self.epoch)

    async def Reclaim(self, request: Command, context: Any) -> ReclaimReply:  # noqa: N802 - gRPC's name
        """Say that the old engine is gone, or what the script says."""
        await self._admit("Reclaim", request, context)
        await asyncio.sleep(self.script.reclaim_s)
        return ReclaimReply(
            ended_pids=[4711], took_ms=1, nothing_left=self.script.nothing_left, detail=self.script.reclaim_detail
        )

    async def Start(self, request: Command, context: Any) -> StartReply:  # noqa: N802 - gRPC's name
        """Start once per epoch; join the start under way or done."""
        await self._admit("Start", request, context)
        if self._start is None or self._start_epoch != request.epoch or _failed(self._start):
            self._start_epoch = request.epoch
            self._start = asyncio.create_task(self._start_engine())
        try:
            return await asyncio.shield(self._start)
        except RuntimeError as error:
            await context.abort(grpc.StatusCode.ABORTED, str(error))
            raise

    async def WarmUp(self, request: Command, context: Any) -> WarmUpReply:  # noqa: N802 - gRPC's name
        """Say that the engine generated."""
        await self._admit("WarmUp", request, context)
        await asyncio.sleep(self.script.warm_up_s)
        if self.script.warm_up_errors:
            self._start = None
            await context.abort(grpc.StatusCode.ABORTED, self.script.warm_up_errors.pop(0))
        return WarmUpReply(tokens=8, took_ms=1)

    async def _start_engine(self) -> StartReply:
        self.starts += 1
        error = self.script.start_errors.pop(0) if self.script.start_errors else ""
        await asyncio.sleep(self.script.start_s)
        if error:
            raise RuntimeError(error)
        return StartReply(engine_url=f"http://127.0.0.1:1/{self.node}", engine_pid=4712, took_ms=50)

    async def _admit(self, name: str, request: Command, context: Any) -> None:
        self.calls.append((name, request.epoch))
        if request.epoch < self.epoch:
            context.set_trailing_metadata(((STALE_EPOCH_KEY, str(self.epoch)),))
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "stale epoch")
        self.epoch = request.epoch


def _failed(task: "asyncio.Task[StartReply]") -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)


@contextlib.asynccontextmanager
async def fake_node(
    store: Store, node: str, script: Script | None = None, **fields: Any
) -> AsyncIterator[FakeNodeAgent]:
    """Run a registered fake for the length of a test."""
    agent = FakeNodeAgent(node, script)
    await agent.open()
    try:
        await agent.register(store, **fields)
        yield agent
    finally:
        await agent.close()
