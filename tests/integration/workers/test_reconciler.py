"""The reconciler on a real server without any worker: what it ends, what it asks for, what it leaves alone."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field, replace
from typing import cast

import pytest

from recovery import jobs, leases, limits, registry
from recovery.jobs import Job, JobState, StepPlan
from recovery.registry import NodeState
from recovery.stopping import stop_tasks
from recovery.store import Store, job_key
from tests.rigs.valkey import Valkey
from tests.rigs.workers import until
from workers import dispatcher, ending, reconciler
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


async def test_a_job_whose_node_moved_on_is_cancelled_and_its_node_left_alone(plain: Store) -> None:
    """Its step was stale: a newer recovery, or the agent itself, has the node in hand."""
    job = await fenced_job(plain)
    newer = await leases.fence(plain, "a", job.new_epoch, "other")
    _, attempt = await jobs.begin_step(plain, job, RECLAIM, "w")
    await jobs.end_step(plain, job.id, "reclaim", attempt, "failed", {}, "stale")
    assert await ending.settle(plain, await jobs.get(plain, job.id))
    ended = await jobs.get(plain, job.id)
    assert ended.state is JobState.CANCELLED
    assert f"moved on to epoch {newer}" in ended.error
    assert (await registry.get(plain, "a")).state is NodeState.RECOVERING


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


@pytest.mark.parametrize("state", ["DEAD", "RECOVERING", "WARMING"])
async def test_a_node_that_waits_for_a_recovery_nobody_began_gets_one(
    plain: Store, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its event or its job was lost; after a while, and not before, a job is created."""
    monkeypatch.setattr(reconciler, "_STRANDED_S", 0.5)
    monkeypatch.setattr(reconciler, "_NODES_EVERY_S", 0.0)
    epoch = (await leases.boot(plain, "a", "h", 0, 0, 5_000)).epoch
    await registry.register(plain, "a", epoch, {"state": state})
    judge = Reconciler(plain, cast("Nudger", FakeNudger()))
    await judge.tick()
    assert await jobs.live(plain) == []

    async def begun() -> bool:
        await judge.tick()
        return bool(await jobs.live(plain))

    await until(begun, "a job for the node")
    (job,) = await jobs.live(plain)
    assert (job.id, job.started_by) == (jobs.job_id("a", epoch), "reconciler")
    assert state in job.evidence


async def test_a_node_whose_job_is_under_way_is_left_to_it(plain: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long it takes."""
    monkeypatch.setattr(reconciler, "_STRANDED_S", 0.0)
    monkeypatch.setattr(reconciler, "_NODES_EVERY_S", 0.0)
    job = await fenced_job(plain)
    judge = Reconciler(plain, cast("Nudger", FakeNudger()))
    await judge.tick()
    await judge.tick()
    assert [found.id for found in await jobs.newest(plain)] == [job.id]


async def test_a_record_nobody_can_read_does_not_end_the_reconciler(
    plain: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes on once the record is mended; a dispatcher that ends would take all other jobs with it."""
    monkeypatch.setattr(dispatcher, "TICK_S", 0.02)
    job = await fenced_job(plain)
    key = job_key(job.id)
    good = await plain.redis.hget(key, "step:reclaim")
    await plain.redis.hset(key, "step:reclaim", "{")
    nudger = FakeNudger()
    judge = Reconciler(plain, cast("Nudger", nudger))
    work = asyncio.create_task(dispatcher.Dispatcher(plain, cast("Nudger", nudger), judge).reconcile())
    try:
        done, _ = await asyncio.wait({work}, timeout=0.2)
        assert not done
        await (plain.redis.hset(key, "step:reclaim", good) if good else plain.redis.hdel(key, "step:reclaim"))

        async def asked() -> bool:
            return "reclaim" in nudger.sent

        await until(asked, "the reconciler asks for the step")
    finally:
        await stop_tasks(work)
