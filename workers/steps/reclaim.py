"""Reclaim: the old engine's process tree is ended and proven gone before anything new uses its memory (D4, D8)."""

from typing import Any

from recovery import limits, registry
from recovery.errors import OperatorNeeded
from recovery.jobs import Job
from workers.agents import Agent, AgentAway
from workers.context import PERMIT_MS, TAKEOVERS, Context, Skip, Wait
from workers.ending import superseded_by


async def run(context: Context, job: Job) -> dict[str, Any]:
    """Take a takeover permit and have the agent clear the node; the permit is kept until the job ends.

    Raises Wait (no permit, agent away), OperatorNeeded (something is left that we did not launch), StaleEpoch.
    """
    newer = superseded_by(job)
    if newer:
        raise Skip(f"the node moved on to epoch {newer} by itself")
    permitted = await limits.take(context.store, TAKEOVERS, job.id, context.settings.limits.takeovers, PERMIT_MS)
    if not permitted:
        raise Wait(f"{context.settings.limits.takeovers} takeovers are under way", restart_clock=True)
    node = await registry.get(context.store, job.node)
    try:
        reply = await Agent(node.agent, job.node, job.new_epoch, job.id, context.token).reclaim()
    except AgentAway as error:
        # A permit must not be kept from nodes that can use it.
        await limits.give_back(context.store, TAKEOVERS, job.id)
        raise Wait(str(error)) from error
    if not reply.nothing_left:
        raise OperatorNeeded(reply.detail or "the agent could not prove the old engine gone")
    return {"ended_pids": list(reply.ended_pids), "agent_ms": reply.took_ms}
