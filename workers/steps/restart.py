"""Restart: an engine starts under the new epoch, as often as the node's budgets allow (requirements D8).

Starts that bring no working engine are few; an engine that works and dies again is brought back more often.
"""

from typing import Any

from recovery import limits, registry
from recovery.errors import StepFailed
from recovery.jobs import Job
from recovery.registry import NodeState
from workers.agents import Agent, AgentAway
from workers.context import Context, Skip, Wait
from workers.ending import superseded_by


async def forgive(context: Context, node: str) -> None:
    """Clear a node's budgets: a human says that the cause is mended."""
    for name in (_starts(node), _recoveries(node)):
        await limits.clear(context.store, name)


async def forgive_starts(context: Context, node: str) -> None:
    """Clear the budget of vain starts: the engine works."""
    await limits.clear(context.store, _starts(node))


async def run(context: Context, job: Job) -> dict[str, Any]:
    """Have the agent start an engine and wait until it serves.

    Raises StepFailed (budget used up), Wait (agent away), AgentRefused (the engine's own message), StaleEpoch.
    """
    newer = superseded_by(job)
    if newer:
        raise Skip(f"the node moved on to epoch {newer} by itself")
    rules = context.settings.limits
    if not await limits.spend(context.store, _recoveries(job.node), job.id, rules.recoveries, rules.restart_period_s):
        raise StepFailed(
            f"recovery budget used up: {rules.recoveries} recoveries in {rules.restart_period_s:g} s; "
            f"this time the engine died of {job.cause}: {job.evidence}"
        )
    return await start_engine(context, job, f"{job.id}:{context.attempt}", job.steps["restart"].error)


async def start_engine(context: Context, job: Job, try_id: str, last: str) -> dict[str, Any]:
    """Start an engine as one try of the restart budget; `last` says why the one before failed. Raises as `run`."""
    rules = context.settings.limits
    if not await limits.spend(context.store, _starts(job.node), try_id, rules.restarts, rules.restart_period_s):
        raise StepFailed(
            f"restart budget used up: {rules.restarts} engine starts in {rules.restart_period_s:g} s in vain"
            + (f"; the last one: {last}" if last else "")
        )
    node = await registry.get(context.store, job.node)
    agent = Agent(node.agent, job.node, job.new_epoch, job.id, context.token)
    try:
        reply = await agent.start(context.settings.probe.start_deadline_s)
    except AgentAway as error:
        raise Wait(str(error)) from error
    # Repeated after a lost worker, the node may be further on already. DEAD is the verdict on a try before this one.
    await registry.set_state(
        context.store, job.node, job.new_epoch, NodeState.WARMING,
        only_in=(NodeState.DEAD, NodeState.RECOVERING, NodeState.STARTING, NodeState.WARMING),
        why=f"job {job.id}: the engine started in {reply.took_ms} ms as process {reply.engine_pid}", by="worker",
        engine_url=reply.engine_url or node.engine_url,
        restart_ms=reply.took_ms or node.restart_ms,
    )  # fmt: skip
    return {"engine_pid": reply.engine_pid, "agent_ms": reply.took_ms}


def _starts(node: str) -> str:
    return f"restarts:{node}"


def _recoveries(node: str) -> str:
    return f"recoveries:{node}"
