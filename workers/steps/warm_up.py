"""Warm-up: the new engine proves itself on a few short generations, then stands on probation (B6, D9)."""

from typing import Any

from recovery import limits, registry
from recovery.errors import StepFailed
from recovery.jobs import Job
from recovery.registry import NodeState
from workers.agents import Agent, AgentAway, AgentRefused
from workers.context import TAKEOVERS, Context, Skip, Wait
from workers.ending import superseded_by
from workers.steps.restart import forgive_starts, start_engine


async def run(context: Context, job: Job) -> dict[str, Any]:
    """Have the agent warm the engine up, hand the node to probation and return the takeover permit.

    An engine that cannot do it is replaced, as far as the restart budget goes.

    Raises Wait (agent away), AgentRefused (a generation failed), StaleEpoch, StepFailed.
    """
    newer = superseded_by(job)
    if newer:
        raise Skip(f"the node moved on to epoch {newer} by itself")
    node = await registry.get(context.store, job.node)
    agent = Agent(node.agent, job.node, job.new_epoch, job.id, context.token)
    try:
        try:
            reply = await agent.warm_up()
        except AgentRefused as error:
            # It died or froze after its start: no repetition would mend it, another engine may.
            await start_engine(context, job, f"{job.id}:warm_up:{context.attempt}", str(error))
            reply = await agent.warm_up()
    except AgentAway as error:
        raise Wait(str(error)) from error
    changed = await registry.set_state(
        context.store, job.node, job.new_epoch, NodeState.PROBATION,
        only_in=(NodeState.RECOVERING, NodeState.STARTING, NodeState.WARMING, NodeState.PROBATION),
        why=f"job {job.id}: warmed up with {reply.tokens} tokens in {reply.took_ms} ms", by="worker", job=job.id,
    )  # fmt: skip
    if not changed:
        state = (await registry.get(context.store, job.node)).state
        if state not in registry.SERVING:
            raise StepFailed(f"the node became {state.value} while its engine warmed up")
    await forgive_starts(context, job.node)
    await limits.give_back(context.store, TAKEOVERS, job.id)
    return {"tokens": reply.tokens, "agent_ms": reply.took_ms}
