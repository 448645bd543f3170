"""The agent's gRPC service: the probe stream, the status question, and the fenced commands.

Knows the wire and nothing of engines; refusals become status codes here.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import Any, TypeAlias

import grpc
import grpc.aio
import structlog

from engines.probing import Outcome
from node.gpu.refusal import GpuLost
from node.host import Host
from node.launcher import StartFailed
from node.notices import Notices, Outgoing
from node.once import Once
from node.probing import Prober
from node.refusals import NoLease, NotServing, OldEngineRuns, WarmUpFailed
from node.registrar import Registrar
from protocol import unbroken_pb2 as pb
from protocol import unbroken_pb2_grpc as rpc
from protocol.channel import OPERATOR_KEY, SERVER_OPTIONS, STALE_EPOCH_KEY
from recovery.auth import same_token
from recovery.errors import LeaseHeld, SettingsError, StaleEpoch, UnbrokenError

_REGISTERED_S = 2.0
"""How long a Start waits for the new address to be in the registry before it reports success all the same."""
_MAX_U32 = 2**32 - 1

_PROBE_S = (0.05, 60.0)
"""Bounds of a probe's deadline."""

log = structlog.get_logger()

_OUTCOMES = {
    Outcome.PASSED: pb.PROBE_OUTCOME_PASSED,
    Outcome.LATE: pb.PROBE_OUTCOME_LATE,
    Outcome.FAILED: pb.PROBE_OUTCOME_FAILED,
    Outcome.NEUTRAL: pb.PROBE_OUTCOME_NEUTRAL,
}
_CODES: dict[type[UnbrokenError], grpc.StatusCode] = {
    StaleEpoch: grpc.StatusCode.FAILED_PRECONDITION,
    OldEngineRuns: grpc.StatusCode.FAILED_PRECONDITION,
    NotServing: grpc.StatusCode.FAILED_PRECONDITION,
    LeaseHeld: grpc.StatusCode.FAILED_PRECONDITION,
    NoLease: grpc.StatusCode.UNAVAILABLE,  # as if the agent were away: the caller waits, and the engine is kept
    GpuLost: grpc.StatusCode.FAILED_PRECONDITION,
    StartFailed: grpc.StatusCode.ABORTED,
    WarmUpFailed: grpc.StatusCode.ABORTED,
}

Context = grpc.aio.ServicerContext[Any, Any]
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


class AgentService(rpc.AgentServicer):
    """Answers sentinel and workers for one node."""

    def __init__(
        self,
        host: Host,
        once: Once,
        prober: Prober,
        notices: Notices,
        registrar: Registrar,
        report: Callable[[bool], pb.NodeReport],
    ) -> None:
        """`report` makes the node's report, on True with every device."""
        self._host = host
        self._prober = prober
        self._once = once
        self._notices = notices
        self._registrar = registrar
        self._report = report

    async def Watch(  # noqa: N802 - gRPC's own naming
        self,
        request_iterator: AsyncIterator[pb.Ping],
        context: Context,  # noqa: ARG002 - gRPC passes it
    ) -> AsyncGenerator[pb.Beat]:
        """Answer each ping at once and interleave notices (requirements B1)."""
        with self._notices.subscribe() as queue:
            reader = asyncio.create_task(_read(request_iterator, queue), name="watch reader")
            try:
                while (item := await queue.get()) is not None:
                    yield self._beat(item)
            finally:
                reader.cancel()
                await asyncio.gather(reader, return_exceptions=True)

    async def Status(  # noqa: N802 - gRPC's own naming
        self,
        request: pb.StatusRequest,  # noqa: ARG002 - gRPC passes it
        context: Context,  # noqa: ARG002 - gRPC passes it
    ) -> pb.NodeReport:
        """Say how the node stands."""
        return self._report(True)

    async def Probe(self, request: pb.ProbeRequest, context: Context) -> pb.ProbeReply:  # noqa: N802, ARG002 - gRPC
        """Have the engine generate one token."""
        engine = self._host.engine
        if engine is None or not engine.serving or engine.record.epoch != request.epoch:
            return pb.ProbeReply(outcome=pb.PROBE_OUTCOME_NEUTRAL, detail="no engine serves under this epoch")
        deadline_s = min(max(request.deadline_ms / 1_000, _PROBE_S[0]), _PROBE_S[1])
        shown = await self._prober.run(engine, deadline_s)
        took_ms = round(shown.took_s * 1_000)
        return pb.ProbeReply(
            outcome=_OUTCOMES[shown.outcome], took_ms=took_ms, detail=shown.detail, answered=shown.answered
        )

    async def Fence(self, request: pb.Command, context: Context) -> pb.NodeReport:  # noqa: N802 - gRPC
        """Refuse everything below the command's epoch and cut off what runs under it."""
        async with self._command("fence", request, context):
            self._host.fence(request.epoch)
        return self._report(False)

    async def Reclaim(self, request: pb.Command, context: Context) -> pb.ReclaimReply:  # noqa: N802 - gRPC
        """End the old engine's process tree and prove it gone."""
        began = time.monotonic()
        async with self._command("reclaim", request, context):
            done = await self._run("reclaim", request, self._host.reclaim)
        left = f"would not die: {', '.join(map(str, done.left))}" if done.left else ""
        return pb.ReclaimReply(ended_pids=done.pids, took_ms=_ms_since(began), nothing_left=not done.left, detail=left)

    async def Start(self, request: pb.Command, context: Context) -> pb.StartReply:  # noqa: N802 - gRPC
        """Start an engine under the command's epoch and wait until it serves."""
        began = time.monotonic()
        async with self._command("start", request, context):
            record = await self._run("start", request, self._host.start)
            await self._registrar.settled(_REGISTERED_S)
        return pb.StartReply(engine_url=record.url, engine_pid=record.pid, took_ms=_ms_since(began))

    async def WarmUp(self, request: pb.Command, context: Context) -> pb.WarmUpReply:  # noqa: N802 - gRPC
        """Run a few short generations before the engine takes traffic."""
        async with self._command("warm_up", request, context):
            tokens, took = await self._run("warm_up", request, self._host.warm_up)
        return pb.WarmUpReply(tokens=tokens, took_ms=took)

    async def _run(self, name: str, request: pb.Command, work: Callable[[int], Awaitable[Any]]) -> Any:
        # Before its turn comes: a newer epoch ends what an older command is still waiting for.
        self._host.accept(request.epoch)
        return await self._once.run((name, request.epoch), lambda: work(request.epoch))

    @contextlib.asynccontextmanager
    async def _command(self, name: str, request: pb.Command, context: Context) -> AsyncGenerator[None]:
        about = {"node": request.node, "epoch": request.epoch, "job": request.job}
        if request.node != self._host.node:
            message = f"this is node {self._host.node!r}, the command is for {request.node!r}"
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, message)
        if request.epoch < 1:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "epoch must be 1 or more")
        log.info(f"command.{name}", **about)
        try:
            yield
        except UnbrokenError as error:
            log.warning(f"command.{name}_refused", error=str(error), **about)
            await _abort(context, error)

    def _beat(self, item: "pb.Notice | tuple[int, pb.Ping]") -> pb.Beat:
        if isinstance(item, pb.Notice):
            return pb.Beat(notice=item)
        read_ns, ping = item
        report = self._report(False)
        took = min(_MAX_U32, (time.monotonic_ns() - read_ns) // 1_000)
        return pb.Beat(pong=pb.Pong(seq=ping.seq, sent_ns=ping.sent_ns, processing_us=took, report=report))


class TokenCheck(grpc.aio.ServerInterceptor):
    """Refuses every call without the agents' token."""

    def __init__(self, token: str) -> None:
        self._expected = f"Bearer {token}"
        self._refusal: Handler = grpc.stream_stream_rpc_method_handler(_refuse)

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable["Handler | None"]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> "Handler | None":
        """Let the call through, or answer it with UNAUTHENTICATED."""
        metadata = dict(handler_call_details.invocation_metadata or ())
        presented = metadata.get("authorization", "")
        text = presented if isinstance(presented, str) else ""
        return await continuation(handler_call_details) if same_token(text, self._expected) else self._refusal


def bind(host: str, port: int, token: str | None) -> tuple[grpc.aio.Server, int]:
    """Make a server bound to the address and return it with its port; services are added by the caller.

    Raises SettingsError naming node.agent_port or node.agent_host.
    """
    server = grpc.aio.server(options=list(SERVER_OPTIONS), interceptors=[TokenCheck(token)] if token else [])
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        bound = server.add_insecure_port(address)
    except RuntimeError as error:
        bound, reason = 0, str(error)
    else:
        reason = "it is occupied"
    if not bound:
        raise SettingsError(
            f"node.agent_port: cannot listen on {address} ({reason}): "
            "end what listens there, or choose another port (0 takes a free one)"
        )
    return server, bound


async def _read(pings: AsyncIterator[pb.Ping], queue: Outgoing) -> None:
    """Queue each ping with the time it was read; a full queue slows the sentinel down."""
    async for ping in pings:
        await queue.put((time.monotonic_ns(), ping))
    await queue.put(None)


async def _abort(context: Context, error: UnbrokenError) -> None:
    code = next((code for kind, code in _CODES.items() if isinstance(error, kind)), grpc.StatusCode.UNKNOWN)
    trailing: tuple[tuple[str, str], ...] = ()
    if isinstance(error, StaleEpoch):
        trailing = ((STALE_EPOCH_KEY, str(error.current)),)
    elif isinstance(error, GpuLost):
        trailing = ((OPERATOR_KEY, "1"),)
    message = f"stale epoch: {error}" if isinstance(error, StaleEpoch) else str(error)
    await context.abort(code, message, trailing)


async def _refuse(_requests: Any, context: Context) -> None:
    await context.abort(
        grpc.StatusCode.UNAUTHENTICATED, "the agents' token is missing or wrong (auth.agent_token_file)"
    )


def _ms_since(began: float) -> int:
    return round((time.monotonic() - began) * 1_000)
