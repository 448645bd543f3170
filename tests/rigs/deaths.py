"""What tests of recovery jobs do again and again: report a death, wait for the job's end."""

from collections.abc import Callable

from recovery import events, jobs
from recovery.errors import UnknownJob
from recovery.events import Kind
from recovery.jobs import Job, Step
from recovery.store import Store
from tests.rigs.workers import until


async def report_death(store: Store, node: str, epoch: int) -> str:
    """Publish node.dead as a sentinel does and return the id of the job it must lead to."""
    await events.publish(
        store, Kind.NODE_DEAD, {"node": node, "epoch": epoch, "cause": "process_exit", "evidence": "a test said so"}
    )
    return jobs.job_id(node, epoch)


async def ended(store: Store, job: str, timeout_s: float = 30.0) -> Job:
    """Wait for a job's end and return it."""

    async def ask() -> Job | None:
        try:
            found = await jobs.get(store, job)
        except UnknownJob:
            return None
        return None if found.state in jobs.LIVE else found

    found = await until(ask, f"job {job} ended", timeout_s)
    assert found is not None
    return found


async def step_is(store: Store, job: str, step: str, judge: Callable[[Step], bool], timeout_s: float = 30.0) -> Step:
    """Wait until a step's record satisfies `judge` and return it."""

    async def ask() -> Step | None:
        try:
            record = (await jobs.get(store, job)).steps[step]
        except UnknownJob:
            return None
        return record if judge(record) else None

    found = await until(ask, f"step {step} of job {job}", timeout_s)
    assert found is not None
    return found
