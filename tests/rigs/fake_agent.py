"""A stand-in for a node's agent: real gRPC, real registry and lease, but no engine behind it."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio

from engines import connect
from engines.llamacpp import open_session
from engines.probing import probe
from protocol import unbroken_pb2 as pb
from protocol import unbroken_pb2_grpc as rpc
from protocol.channel import SERVER_OPTIONS
from recovery import leases, registry
from recovery.registry import NodeState
from recovery.store import Store, node_key


class FakeAgent(rpc.AgentServicer):
    """Answers Watch and Status as told: promptly, late, or not at all.

    `report` is what it says of its node; change its fields at will.
    """

    def __init__(self, node: str, epoch: int = 1, token: str | None = None) -> None:
        self.node = node
        self.token = token
        self.report = pb.NodeReport(
            node=node, epoch=epoch, phase=pb.PHASE_SERVING, ready=True, free_ratio=1.0, lease_held=True
        )
        self.silent = False
        """Neither pongs nor status answers, though the connection stays."""
        self.status_silent = False
        self.pong_delay_s = 0.0
        self.pings = 0
        self.streams = 0
        self.status_calls = 0
        self.port = 0
        self._server: grpc.aio.Server | None = None
        self._open: set[asyncio.Queue[pb.Beat | None]] = set()
        self._holder = f"fake-{node}"
        self._renewing: asyncio.Task[None] | None = None
        self._probe_began = 0.0

    @property
    def open(self) -> int:
        """Streams open now."""
        return len(self._open)

    @property
    def address(self) -> str:
        """host:port."""
        return f"127.0.0.1:{self.port}"

    async def start(self, port: int = 0) -> None:
        """Listen."""
        self._server = grpc.aio.server(options=list(SERVER_OPTIONS))
        rpc.add_AgentServicer_to_server(self, self._server)
        self.port = self._server.add_insecure_port(f"127.0.0.1:{port}")
        await self._server.start()

    async def stop(self) -> None:
        """Vanish: the port is closed, streams break, the lease is renewed no more."""
        self.let_lease_lapse()
        if self._server is not None:
            server, self._server = self._server, None
            await server.stop(None)

    async def join(
        self, store: Store, state: NodeState = NodeState.STARTING, lease_ms: int | None = 5_000, **fields: Any
    ) -> None:
        """Register the node under the report's epoch and hold its lease (None: never have one)."""
        epoch = self.report.epoch
        await store.redis.set(node_key(self.node, "epoch"), epoch)
        if lease_ms is not None:
            await leases.renew(store, self.node, self._holder, epoch, lease_ms)
            self._renewing = asyncio.create_task(self._renew(store, epoch, lease_ms))
        known: dict[str, Any] = {
            "agent": self.address,
            "kind": "llamacpp",
            "model": "m",
            "slots": 4,
            "state": state.value,
        }
        await registry.register(store, self.node, epoch, {**known, "weight": 0.0, **fields})

    def let_lease_lapse(self) -> None:
        """Renew the lease no more."""
        if self._renewing is not None:
            self._renewing.cancel()
            self._renewing = None

    def notify(self, kind: "pb.NoticeKind", cause: str = "", evidence: str = "") -> None:
        """Send a notice on every open stream."""
        notice = pb.Notice(
            kind=kind,
            epoch=self.report.epoch,
            cause=cause,
            evidence=evidence,
            wall_ms=int(time.time() * 1_000),
        )
        for out in self._open:
            out.put_nowait(pb.Beat(notice=notice))

    def break_streams(self) -> None:
        """End every open stream as a transport would, not the agent."""
        for out in self._open:
            out.put_nowait(None)

    async def Watch(  # noqa: N802 - the name in the protocol
        self, requests: AsyncIterator[pb.Ping], context: "grpc.aio.ServicerContext[pb.Ping, pb.Beat]"
    ) -> AsyncIterator[pb.Beat]:
        """Answer pings."""
        await self._check(context)
        out: asyncio.Queue[pb.Beat | None] = asyncio.Queue(1_000)
        self._open.add(out)
        self.streams += 1
        reading = asyncio.create_task(self._read(requests, out))
        try:
            while (beat := await out.get()) is not None:
                yield beat
            await context.abort(grpc.StatusCode.UNAVAILABLE, "Too many pings")
        finally:
            self._open.discard(out)
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    async def Status(  # noqa: N802 - the name in the protocol
        self, _request: pb.StatusRequest, context: "grpc.aio.ServicerContext[pb.StatusRequest, pb.NodeReport]"
    ) -> pb.NodeReport:
        """Report."""
        self.status_calls += 1
        await self._check(context)
        if self.silent or self.status_silent:
            await asyncio.sleep(60)
        return self.report

    async def Probe(  # noqa: N802 - the name in the protocol
        self, request: pb.ProbeRequest, context: "grpc.aio.ServicerContext[pb.ProbeRequest, pb.ProbeReply]"
    ) -> pb.ProbeReply:
        """Probe the engine that the report names, as a real agent would."""
        await self._check(context)
        if self.silent:
            await asyncio.sleep(60)
        if not self.report.engine_url:
            return pb.ProbeReply(outcome=pb.PROBE_OUTCOME_NEUTRAL, detail="no engine")
        async with open_session() as session:
            engine = connect("llamacpp", self.report.engine_url, session)
            began = time.monotonic()
            self._probe_began = began
            try:
                shown = await probe(engine, request.deadline_ms / 1_000)
            finally:
                self._probe_began = 0.0
        return pb.ProbeReply(
            outcome=f"PROBE_OUTCOME_{shown.outcome.name}",
            took_ms=round(shown.took_s * 1_000),
            detail=shown.detail,
            answered=shown.answered,
        )

    async def _check(self, context: "grpc.aio.ServicerContext[Any, Any]") -> None:
        presented = dict(context.invocation_metadata() or ()).get("authorization")
        if self.token and presented != f"Bearer {self.token}":
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "wrong agent token")

    async def _read(self, requests: AsyncIterator[pb.Ping], out: asyncio.Queue[pb.Beat | None]) -> None:
        late: set[asyncio.Task[None]] = set()
        try:
            async for ping in requests:
                self.pings += 1
                if self.silent:
                    continue
                if self.pong_delay_s:
                    late.add(asyncio.create_task(self._answer_late(ping, out)))
                else:
                    out.put_nowait(self._pong(ping))
        finally:
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    async def _answer_late(self, ping: pb.Ping, out: asyncio.Queue[pb.Beat | None]) -> None:
        await asyncio.sleep(self.pong_delay_s)
        if not self.silent:
            out.put_nowait(self._pong(ping))

    def _pong(self, ping: pb.Ping) -> pb.Beat:
        now = time.monotonic()
        self.report.at_ms = round(now * 1_000)
        self.report.probe_ms = round((now - self._probe_began) * 1_000) + 1 if self._probe_began else 0
        return pb.Beat(pong=pb.Pong(seq=ping.seq, sent_ns=ping.sent_ns, processing_us=1, report=self.report))

    async def _renew(self, store: Store, epoch: int, lease_ms: int) -> None:
        while True:
            await asyncio.sleep(lease_ms / 5_000)
            with contextlib.suppress(Exception):
                await leases.renew(store, self.node, self._holder, epoch, lease_ms)


@contextlib.asynccontextmanager
async def fake_agent(node: str, epoch: int = 1, token: str | None = None) -> AsyncIterator[FakeAgent]:
    """Yield a listening agent; it is stopped whatever happens."""
    agent = FakeAgent(node, epoch, token)
    await agent.start()
    try:
        yield agent
    finally:
        await agent.stop()
