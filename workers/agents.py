"""Fenced commands to a node's agent over gRPC: one short-lived channel and one deadline for each call.

Repeating a command is harmless: the agent joins it to the one under way.
"""

from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio

from protocol.channel import OPERATOR_KEY, STALE_EPOCH_KEY, credentials, open_channel
from protocol.unbroken_pb2 import Command, NodeReport, ReclaimReply, StartReply, WarmUpReply
from protocol.unbroken_pb2_grpc import AgentStub
from recovery.errors import OperatorNeeded, StaleEpoch, StepFailed, UnbrokenError

FENCE_S = 0.5
RECLAIM_S = 30.0
WARM_UP_S = 60.0
_REPLY_S = 30.0
"""What a Start may take beyond the engine's own start deadline: the agent reports that one itself."""


class AgentAway(UnbrokenError):
    """The node's agent did not answer."""


class AgentRefused(UnbrokenError):
    """The agent could not do what it was told; another try may succeed."""


@dataclass(frozen=True, slots=True)
class Agent:
    """A node's agent, spoken to under one epoch in one job's name.

    Every command raises AgentAway (unreachable or silent past the deadline), AgentRefused (it failed),
    StaleEpoch (the node has moved on), StepFailed (it will never work, e.g. a wrong token), OperatorNeeded (only a
    human can help, e.g. its GPU is lost).
    """

    address: str
    """host:port as registered; empty: none is known."""
    node: str
    epoch: int
    job: str
    token: str | None = None

    async def fence(self) -> NodeReport:
        """Have the agent refuse every older epoch and cut its generations off."""
        reply: NodeReport = await self._call("Fence", FENCE_S)
        return reply

    async def reclaim(self) -> ReclaimReply:
        """Have the old engine's process tree ended and proven gone."""
        reply: ReclaimReply = await self._call("Reclaim", RECLAIM_S)
        return reply

    async def start(self, engine_deadline_s: float) -> StartReply:
        """Have an engine started; returns when it serves."""
        reply: StartReply = await self._call("Start", engine_deadline_s + _REPLY_S)
        return reply

    async def warm_up(self) -> WarmUpReply:
        """Have a few short generations run through the engine."""
        reply: WarmUpReply = await self._call("WarmUp", WARM_UP_S)
        return reply

    async def _call(self, name: str, timeout_s: float) -> Any:
        if not self.address:
            raise AgentAway(f"node {self.node} has no agent registered")
        channel = open_channel(self.address)
        try:
            return await getattr(AgentStub(channel), name)(
                Command(node=self.node, epoch=self.epoch, job=self.job),
                timeout=timeout_s,
                metadata=credentials(self.token),
            )
        except grpc.aio.AioRpcError as error:
            raise self._explain(name, error) from error
        finally:
            await channel.close()

    def _explain(self, name: str, error: grpc.aio.AioRpcError) -> UnbrokenError:
        code, detail = error.code(), error.details() or error.code().name
        if code is grpc.StatusCode.FAILED_PRECONDITION:
            for key, value in error.trailing_metadata() or ():
                if key == STALE_EPOCH_KEY:
                    return StaleEpoch(self.node, self.epoch, int(value))
                if key == OPERATOR_KEY:
                    return OperatorNeeded(detail)
        if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
            return AgentAway(f"agent of node {self.node} at {self.address}: {detail}")
        if code in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED):
            return StepFailed(
                f"agent of node {self.node} refused our token ({detail}): "
                "auth.agent_token_file must hold the same secret for workers and agents"
            )
        if code is grpc.StatusCode.UNIMPLEMENTED:
            return StepFailed(f"agent of node {self.node} does not know {name}: update it")
        return AgentRefused(f"{name} on node {self.node}: {detail}")
