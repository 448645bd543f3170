"""How a job ends: with its node on probation, or with its node still fenced and a reason (requirements E5)."""

import structlog

from recovery import jobs, leases, limits, registry
from recovery.errors import StaleEpoch
from recovery.jobs import Job, JobState
from recovery.registry import NodeState
from recovery.store import Store
from workers.context import TAKEOVERS

log = structlog.get_logger()


async def settle(store: Store, job: Job) -> bool:
    """End the job if its steps say so; True when it is over. Repeating it is harmless. Raises StoreUnavailable."""
    if job.state not in jobs.LIVE:
        return True
    failed = next((step for step in job.steps.values() if step.state == "failed"), None)
    if failed is not None:
        await _fail(store, job, f"{failed.name}: {failed.error}", operator=bool(failed.outcome.get("operator")))
        return True
    if all(step.done for step in job.steps.values()):
        await limits.give_back(store, TAKEOVERS, job.id)
        if await jobs.end(store, job, JobState.SUCCEEDED):
            log.info("job.succeeded", job=job.id, node=job.node, epoch=job.epoch)
        return True
    return False


def superseded_by(job: Job) -> int:
    """Return the epoch the node took by itself before the job could fence it, or 0."""
    return int(job.steps["fence"].outcome.get("superseded_by", 0)) if "fence" in job.steps else 0


async def _fail(store: Store, job: Job, reason: str, *, operator: bool) -> None:
    state = NodeState.NEEDS_OPERATOR if operator else NodeState.QUARANTINED
    # A node that is back serves; only what comes after its warm-up went wrong.
    recovered = "warm_up" in job.steps and job.steps["warm_up"].state == "succeeded"
    final = JobState.NEEDS_OPERATOR if operator else JobState.FAILED
    if not recovered and not superseded_by(job):
        try:
            epoch = job.new_epoch or await leases.fence(store, job.node, job.epoch, job.id)
            await registry.set_state(
                store, job.node, epoch, state, why=f"job {job.id}: {reason}", by="worker", job=job.id, detail=reason
            )
        except StaleEpoch as error:
            # Somebody else has it in hand; whatever went wrong here is of no consequence any more.
            final, reason = JobState.CANCELLED, f"the node moved on to epoch {error.current} by itself; {reason}"
    ended = await jobs.end(store, job, final, reason)
    await limits.give_back(store, TAKEOVERS, job.id)
    if ended and final is JobState.CANCELLED:
        log.warning("job.overtaken", job=job.id, node=job.node, epoch=job.epoch, reason=reason)
    elif ended:
        log.error("job.failed", job=job.id, node=job.node, epoch=job.epoch, state=state.value, reason=reason)
