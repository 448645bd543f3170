"""The resident stream to one agent (requirements B1).

Turns gRPC into evidence; judges nothing.
"""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable

import grpc
import grpc.aio
import structlog

from detectors.evidence import (
    AgentStopping,
    EngineDown,
    Evidence,
    LinkBroken,
    LinkRejected,
    LinkUp,
    Pong,
    ProbeFailed,
    ProbeLate,
    ProbeNeutral,
    ProbePassed,
    Report,
    Rested,
)
from detectors.reports import REST_S, at_rest, report_of
from protocol import unbroken_pb2 as pb
from protocol import unbroken_pb2_grpc as rpc
from protocol.channel import credentials, open_channel

_CONNECT_S = 1.0
_BACKOFF_S = (0.1, 2.0)
_REJECTED_S = 5.0
"""Pause after a refused token: only a changed setting helps, so there is no hurry."""
_UNSENT = 64
"""Pings that may wait for a stream that takes nothing."""
_END_S = 1.0
_NOTICE_S = 5.0
_PROBE_SLACK_S = 5.0
"""Time beyond a probe's deadline for its outcome to come through a bad line."""

_REST_NS = round(REST_S * 1e9)

_REFUSALS = frozenset({grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED})

log = structlog.get_logger()


class Link:
    """One stream to the agent at `address`, opened again whenever it breaks, until `run` is cancelled."""

    def __init__(
        self,
        node: str,
        address: str,
        token: str | None,
        sentinel: str,
        tell: Callable[[Evidence], None],
        opening: asyncio.Semaphore,
        known: Callable[[], Report | None],
    ) -> None:
        """`opening` bounds how many links are opened at once; `known` is the last report that was told."""
        self.node = node
        self.up = False
        """Whether pings flow."""
        self._address = address
        self._token = token
        self._sentinel = sentinel
        self._tell = tell
        self._opening = opening
        self._known = known
        self._read_ns = 0
        self._rested: pb.NodeReport | None = None
        """The last report that was not told, since the node is at rest."""
        self._unsent: deque[int] = deque()
        self._filled: asyncio.Future[None] | None = None
        """What the writer waits for: cheaper than a queue, which is noticed with hundreds of links."""
        self._again = asyncio.Event()
        self._said_rejected = ""
        self._channel: grpc.aio.Channel | None = None

    def ping(self, seq: int) -> None:
        """Send a ping, without waiting; a stream that takes nothing loses it, and it will be missed."""
        if self.up and len(self._unsent) < _UNSENT:
            self._unsent.append(seq)
            if self._filled is not None and not self._filled.done():
                self._filled.set_result(None)

    async def probe(self, epoch: int, deadline_s: float) -> ProbePassed | ProbeLate | ProbeFailed | ProbeNeutral:
        """Have the agent run a micro-inference of at most `deadline_s`; its silence says nothing of the engine."""
        channel = self._channel
        if channel is None or not self.up:
            return ProbeNeutral("no link to the agent")
        request = pb.ProbeRequest(epoch=epoch, deadline_ms=round(deadline_s * 1e3))
        try:
            reply = await rpc.AgentStub(channel).Probe(
                request, metadata=credentials(self._token), timeout=deadline_s + _PROBE_SLACK_S
            )
        except (grpc.aio.AioRpcError, grpc.aio.UsageError) as error:
            return ProbeNeutral(f"the agent did not say: {error}"[:200])
        if reply.outcome == pb.PROBE_OUTCOME_PASSED:
            return ProbePassed(reply.took_ms / 1e3)
        if reply.outcome == pb.PROBE_OUTCOME_LATE:
            return ProbeLate(reply.detail)
        if reply.outcome == pb.PROBE_OUTCOME_FAILED:
            return ProbeFailed(reply.detail, reply.answered)
        return ProbeNeutral(reply.detail)

    def reconnect(self, address: str = "") -> None:
        """Give the present stream up and open another, to `address` if it is a new one."""
        if address:
            self._address = address
        self._again.set()

    async def run(self) -> None:
        """Keep the stream open. Each failed try is evidence."""
        pause = _BACKOFF_S[0]
        while True:
            self._again.clear()
            lived = time.monotonic()
            wait = await self._stream_once()
            self.up = False
            pause = _BACKOFF_S[0] if time.monotonic() - lived > _BACKOFF_S[1] else min(2 * pause, _BACKOFF_S[1])
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._again.wait(), wait or pause)

    async def _stream_once(self) -> float:
        """Run one stream to its end and tell why it ended; return a pause of its own, or 0."""
        channel = open_channel(self._address)
        try:
            try:
                async with self._opening, asyncio.timeout(_CONNECT_S):
                    await channel.channel_ready()
            except TimeoutError:
                self._tell(LinkBroken(f"{self._address}: no connection within {_CONNECT_S:g} s"))
                return 0.0
            call = rpc.AgentStub(channel).Watch(metadata=credentials(self._token))
            try:
                self._channel = channel
                await self._exchange(call)
            finally:
                self._channel = None
                # An abandoned call is never collected.
                call.cancel()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(call.code(), _END_S)
        except grpc.aio.AioRpcError as error:
            return self._broken(error)
        finally:
            self.up = False
            await channel.close()
        self._tell(LinkBroken(f"{self._address}: the agent closed the stream"))
        return 0.0

    async def _exchange(self, call: grpc.aio.StreamStreamCall[pb.Ping, pb.Beat]) -> None:
        self._unsent.clear()
        self._rested = None
        self.up = True
        self._tell(LinkUp())
        tasks = [asyncio.create_task(step) for step in (self._write(call), self._read(call), self._told_again())]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _told_again(self) -> None:
        await self._again.wait()

    async def _write(self, call: grpc.aio.StreamStreamCall[pb.Ping, pb.Beat]) -> None:
        loop = asyncio.get_running_loop()
        while True:
            if not self._unsent:
                self._filled = loop.create_future()
                await self._filled
            seq = self._unsent.popleft()
            try:
                await call.write(pb.Ping(seq=seq, sent_ns=time.monotonic_ns(), sentinel=self._sentinel))
            except asyncio.InvalidStateError:  # the call ended; its status says why
                code, details = await call.code(), await call.details()
                raise grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details) from None

    async def _read(self, call: grpc.aio.StreamStreamCall[pb.Ping, pb.Beat]) -> None:
        while True:
            beat = await call.read()
            if not isinstance(beat, pb.Beat):  # end of the stream
                return
            kind = beat.WhichOneof("kind")
            if kind == "pong":
                self._pong(beat.pong)
            elif kind == "notice":
                self._notice(beat.notice)

    def _pong(self, pong: pb.Pong) -> None:
        report, now_ns = pong.report, time.monotonic_ns()
        if report.node != self.node and report.node:
            raise grpc.aio.AioRpcError(
                grpc.StatusCode.UNAVAILABLE,
                grpc.aio.Metadata(),
                grpc.aio.Metadata(),
                f"the agent there is node {report.node}'s",
            )
        self._said_rejected = ""
        rtt_us = (now_ns - pong.sent_ns) / 1_000
        rests = at_rest(report, self._known())
        if rests and now_ns - self._read_ns < _REST_NS:
            self._rested = report
            self._tell(Pong(pong.seq, rtt_us, None))
            return
        self._read_ns = now_ns
        rested, self._rested = self._rested, None
        if rested is not None and not rests:
            self._tell(Rested(report_of(rested)))  # from then on it was at rest no more
        self._tell(Pong(pong.seq, rtt_us, report_of(report)))

    def _notice(self, notice: pb.Notice) -> None:
        log.info(
            "sentinel.notice",
            node=self.node,
            epoch=notice.epoch,
            kind=pb.NoticeKind.Name(notice.kind),
            cause=notice.cause,
        )
        if notice.kind == pb.NOTICE_KIND_ENGINE_DOWN:
            age_s = time.time() - notice.wall_ms / 1e3
            # Two machines' clocks differ; more than this no notice takes.
            known_s = age_s if 0 <= age_s < _NOTICE_S else 0.0
            self._tell(EngineDown(notice.epoch, notice.cause, notice.evidence, known_s))
        elif notice.kind == pb.NOTICE_KIND_STOPPING:
            self._tell(AgentStopping())

    def _broken(self, error: grpc.aio.AioRpcError) -> float:
        if error.code() not in _REFUSALS:
            self._tell(LinkBroken(f"{self._address}: {error.code().name.lower()}: {error.details()}"))
            return 0.0
        if self._said_rejected != self._address:
            self._said_rejected = self._address
            log.error(
                "sentinel.token_rejected",
                node=self.node,
                agent=self._address,
                error=error.details(),
                mend="give sentinel and agents the same auth.agent_token_file",
            )
        self._tell(LinkRejected())
        return _REJECTED_S
