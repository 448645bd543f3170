"""The reconciler on a real server without any worker: what it ends, what it asks for, what it leaves alone."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field, replace
from typing import cast

import pytest

from recovery import jobs, leases, limits, registry
from recovery.jobs import Job, JobState, StepPlan
from recovery.registry import NodeState
from recovery.store import Store
from tests.rigs.valkey import Valkey
from tests.rigs.workers import until
from workers import ending
from workers.context import PERMIT_MS, TAKEOVERS
from workers.nudge import Nudger
from workers.reconciler import Reconciler

FENCE, RECLAIM, RESTART = jobs.RECOVER[0], jobs.RECOVER[2], jobs.RECOVER[3]


@dataclass
class FakeNudger:
    """Writes down what would be sent."""

    sent: list[str] = field(default_factory=list)

    async def send(self, job: Job, step: StepPlan) -> None:
        """Send nothing."""
        assert job.state in jobs.LIVE
        self.sent.append(step.name)


@pytest.fixture
async def plain(redis_url: str) -> AsyncGenerator[Store]:
    """A store on the emptied shared server: no worker listens there."""
    store = Store(redis_url)
    try:
        yield store
    finally:
        await store.aclose()


async def fenced_job(store: Store) -> Job:
    """A job of node a whose fence is done."""
    epoch = (await leases.boot(store, "a", "h", 0, 0, 5_000)).epoch
    await registry.register(store, "a", epoch, {"state": "DEAD"})
    job, _ = await jobs.create(store, "a", epoch, cause="c", evidence="e", started_by="sentinel")
    new = await leases.fence(store, "a", epoch, job.id)
    await jobs.set_new_epoch(store, job.id, new)
    _, attempt = await jobs.begin_step(store, job, FENCE, "w")
    await jobs.end_step(store, job.id, "fence", attempt, "succeeded", {"epoch": new})
    return await jobs.get(store, job.id)


async def test_a_step_past_its_deadline_ends_the_job_with_the_reason_and_the_node_fenced(plain: Store) -> None:
    """Nothing waits for ever, and the last error is told."""
    job = await fenced_job(plain)
    _, attempt = await jobs.begin_step(plain, job, RECLAIM, "w")
    await jobs.end_step(plain, job.id, "reclaim", attempt, "pending", {}, "agent away", give_back=True)
    nudger = FakeNudger()
    judge = Reconciler(plain, cast("Nudger", nudger))
    record = await plain.redis.hget(f"unbroken:{{job:{job.id}}}", "step:reclaim")
    began = (await jobs.get(plain, job.id)).steps["reclaim"].began_ms
    late = record.replace(str(began), str(began - 91_000))
    assert late != record
    await plain.redis.hset(f"unbroken:{{job:{job.id}}}", "step:reclaim", late)

    await judge.tick()

    ended = await jobs.get(plain, job.id)
    assert ended.state is JobState.FAILED
    assert ended.steps["reclaim"].state == "failed"
    for part in ("reclaim", "deadline of 90 s", "agent away"):
        assert part in ended.error
    node = await registry.get(plain, "a")
    assert (node.state, node.epoch, node.detail) == (NodeState.QUARANTINED, job.new_epoch, ended.error)
    assert "reclaim" not in nudger.sent


async def test_a_step_whose_worker_was_lost_is_asked_for_again(plain: Store) -> None:
    """As soon as its lease has lapsed, and not before."""
    job = await fenced_job(plain)
    nudger = FakeNudger()
    judge = Reconciler(plain, cast("Nudger", nudger))
    await jobs.begin_step(plain, job, replace(RECLAIM, lease_ms=400), "lost")
    await judge.tick()
    assert "reclaim" not in nudger.sent

    async def asked() -> bool:
        await judge.tick()
        return "reclaim" in nudger.sent

    await until(asked, "the reconciler asks for the step")


async def test_a_job_whose_last_step_is_done_is_ended_even_if_its_worker_died_before_saying_so(plain: Store) -> None:
    """The record is complete; only its end was missing."""
    job = await fenced_job(plain)
    for plan in jobs.RECOVER[1:]:
        _, attempt = await jobs.begin_step(plain, job, plan, "w")
        await jobs.end_step(plain, job.id, plan.name, attempt, "succeeded")
    await Reconciler(plain, cast("Nudger", FakeNudger())).tick()
    assert (await jobs.get(plain, job.id)).state is JobState.SUCCEEDED
    assert await jobs.live(plain) == []


async def test_the_permit_of_a_running_takeover_is_kept_and_that_of_an_ended_one_is_free(plain: Store) -> None:
    """The reconciler prolongs it between steps; the end returns it."""
    job = await fenced_job(plain)
    assert await limits.take(plain, TAKEOVERS, job.id, 1, 300)
    _, attempt = await jobs.begin_step(plain, job, RECLAIM, "w")
    await jobs.end_step(plain, job.id, "reclaim", attempt, "succeeded")
    await Reconciler(plain, cast("Nudger", FakeNudger())).tick()
    assert await plain.redis.zscore("unbroken:limits:{takeovers}", job.id) > job.created_ms + PERMIT_MS / 2

    _, attempt = await jobs.begin_step(plain, job, RESTART, "w")
    await jobs.end_step(plain, job.id, "restart", attempt, "failed", {}, "boom")
    assert await ending.settle(plain, await jobs.get(plain, job.id))
    assert await limits.take(plain, TAKEOVERS, "other", 1, 5_000)


async def test_a_job_that_failed_before_its_fence_leaves_its_node_fenced(plain: Store) -> None:
    """Whatever went wrong, a dead epoch must not act again."""
    epoch = (await leases.boot(plain, "a", "h", 0, 0, 5_000)).epoch
    await registry.register(plain, "a", epoch, {"state": "DEAD"})
    job, _ = await jobs.create(plain, "a", epoch, cause="c", evidence="e", started_by="sentinel")
    _, attempt = await jobs.begin_step(plain, job, FENCE, "w")
    await jobs.end_step(plain, job.id, "fence", attempt, "failed", {}, "boom")
    assert await ending.settle(plain, await jobs.get(plain, job.id))
    assert await leases.current_epoch(plain, "a") == epoch + 1
    assert (await registry.get(plain, "a")).state is NodeState.QUARANTINED


async def test_no_step_is_called_late_right_after_redis_was_away(own_valkey: Valkey) -> None:
    """Nobody could have worked meanwhile."""
    store = Store(own_valkey.url, 300)
    try:
        judge = Reconciler(store, cast("Nudger", FakeNudger()))
        own_valkey.stop()
        await judge.tick()
        own_valkey.start()
        job = await fenced_job(store)
        await judge.tick()
        assert not judge._late(
            replace(job, steps=job.steps | {"reclaim": replace(job.steps["reclaim"], began_ms=1)}),
            RECLAIM,
            job.updated_ms,
        )
    finally:
        await store.aclose()
