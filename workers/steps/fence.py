"""Fence: from now on nothing the dead epoch says or writes counts (requirements D4).

Redis first, without asking anybody: every sink checks the epoch, so a deaf agent cannot hold us up.
"""

import asyncio
from typing import Any

import structlog

from recovery import events, leases, registry
from recovery.errors import StaleEpoch, StepFailed, StoreUnavailable, UnknownNode
from recovery.jobs import Job, set_new_epoch
from recovery.registry import NodeState
from workers.agents import Agent, AgentAway, AgentRefused
from workers.context import Context
from workers.steps.restart import forgive

log = structlog.get_logger()

_GIVEN_UP = frozenset({NodeState.QUARANTINED, NodeState.NEEDS_OPERATOR})


async def run(context: Context, job: Job) -> dict[str, Any]:
    """Raise the node's epoch; outcome {"epoch": new} or {"superseded_by": epoch} when the node moved on by itself."""
    if job.started_by != "sentinel":
        await _forgive(context, job)
    try:
        epoch = await leases.fence(context.store, job.node, job.epoch, job.id)
    except StaleEpoch as error:
        return {"superseded_by": error.current}
    told: events.Fields = {
        "node": job.node, "epoch": epoch, "state": NodeState.RECOVERING.value, "weight": 0,
        "why": f"job {job.id}: fenced epoch {job.epoch}", "by": "worker",
    }  # fmt: skip
    await asyncio.gather(
        set_new_epoch(context.store, job.id, epoch),
        events.publish(context.store, events.Kind.NODE_STATE, told),
    )
    return {"epoch": epoch}


async def tell_agent(context: Context, node: str, outcome: dict[str, Any], job: str) -> None:
    """Tell the agent of the fence, so that a zombie's generations end now; failing to is no failure."""
    if "epoch" not in outcome:
        return
    try:
        address = (await registry.get(context.store, node)).agent
        await Agent(address, node, outcome["epoch"], job, context.token).fence()
    except (AgentAway, AgentRefused, StaleEpoch, StepFailed, StoreUnavailable, UnknownNode) as error:
        log.info("fence.agent_not_told", job=job, node=node, epoch=outcome["epoch"], error=str(error))


async def _forgive(context: Context, job: Job) -> None:
    """Let a human's recovery of a node we gave up on start with a fresh restart budget."""
    try:
        node = await registry.get(context.store, job.node)
    except UnknownNode:
        return
    if node.state in _GIVEN_UP:
        await forgive(context, job.node)
