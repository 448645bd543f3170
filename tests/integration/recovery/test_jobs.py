"""Job records on a real server: one per (node, epoch), one holder per step, a history that says it all."""

import asyncio
import time

import pytest

from recovery import events, jobs
from recovery.errors import StepLost, UnknownJob
from recovery.jobs import Job, JobState, StepPlan
from recovery.store import LIVE_JOBS, Store
from tests.rigs.workers import until

FENCE, REQUEUE, RECLAIM, RESTART, *_ = jobs.RECOVER
BRIEF = StepPlan("fence", (), "recovery.fast", 15.0, 3, 150)


async def create(store: Store, epoch: int = 7) -> Job:
    """Create the job of node a."""
    job, created = await jobs.create(
        store, "a", epoch, cause="process_exit", evidence="pid 7 signal 9", started_by="sentinel"
    )
    assert created
    return job


async def finish(store: Store, job: Job, plan: StepPlan) -> None:
    """Succeed in a step."""
    verdict, attempt = await jobs.begin_step(store, job, plan, f"w-{plan.name}")
    assert verdict == "begun"
    await jobs.end_step(store, job.id, plan.name, attempt, "succeeded", {"n": 1})


async def test_a_job_is_created_once_however_many_ask_at_once(store: Store) -> None:
    """All get the same record, one is told that it made it, one event says so."""
    results = await asyncio.gather(
        *(jobs.create(store, "a", 7, cause="c", evidence=f"e{n}", started_by="sentinel") for n in range(15))
    )
    assert sum(created for _, created in results) == 1
    assert {(job.id, job.evidence) for job, _ in results} == {("a.7", results[0][0].evidence)}
    async with store.reader() as reader:
        told = await events.read(reader, "0-0", block_ms=50)
    assert [event.fields for event in told] == [{"job": "a.7", "node": "a", "epoch": "7", "state": "queued"}]
    assert len(await jobs.audit(store, "a.7")) == 1
    assert [job.id for job in await jobs.live(store)] == ["a.7"]


async def test_steps_become_ready_as_what_they_need_is_done(store: Store) -> None:
    """After the fence, requeue and reclaim are ready together."""
    job = await create(store)

    async def ready() -> list[str]:
        return [plan.name for plan in (await jobs.get(store, job.id)).ready(int(time.time() * 1_000))]

    assert await ready() == ["fence"]
    assert (await jobs.begin_step(store, job, RECLAIM, "w"))[0] == "early"
    await finish(store, job, FENCE)
    assert await ready() == ["requeue", "reclaim"]
    await finish(store, job, RECLAIM)
    assert await ready() == ["requeue", "restart"]
    assert (await jobs.get(store, job.id)).state is JobState.RUNNING


async def test_of_many_workers_one_holds_a_step(store: Store) -> None:
    """The others are told so; the holder's own repeated call is answered like the first."""
    job = await create(store)
    verdicts = await asyncio.gather(*(jobs.begin_step(store, job, FENCE, f"w{n}") for n in range(20)))
    assert sorted({verdict for verdict, _ in verdicts}) == ["begun", "held"]
    assert sum(verdict == "begun" for verdict, _ in verdicts) == 1
    holder = (await jobs.get(store, job.id)).steps["fence"].holder
    assert await jobs.begin_step(store, job, FENCE, holder) == ("begun", 1)
    assert (await jobs.get(store, job.id)).steps["fence"].attempts == 1


async def test_a_step_lease_that_lapsed_is_taken_over_and_its_old_holder_refused(store: Store) -> None:
    """The late worker's outcome counts for nothing."""
    job = await create(store)
    assert await jobs.begin_step(store, job, BRIEF, "slow") == ("begun", 1)
    attempt = 0

    async def taken() -> bool:
        nonlocal attempt
        verdict, attempt = await jobs.begin_step(store, job, BRIEF, "next")
        return verdict == "begun"

    await until(taken, "the lease lapsed")
    assert attempt == 2
    with pytest.raises(StepLost):
        await jobs.prolong_step(store, job.id, BRIEF, 1, "slow")
    with pytest.raises(StepLost):
        await jobs.end_step(store, job.id, "fence", 1, "succeeded", {"epoch": 99})
    await jobs.end_step(store, job.id, "fence", 2, "succeeded", {"epoch": 8})
    assert (await jobs.get(store, job.id)).steps["fence"].outcome == {"epoch": 8}
    assert await jobs.begin_step(store, job, BRIEF, "third") == ("done", 0)


async def test_a_prolonged_lease_outlives_its_first_term(store: Store) -> None:
    """As long as its worker says so, the step is held."""
    job = await create(store)
    await jobs.begin_step(store, job, BRIEF, "w")
    end = time.monotonic() + 0.6
    while time.monotonic() < end:
        await jobs.prolong_step(store, job.id, BRIEF, 1, "w")
        assert await jobs.begin_step(store, job, BRIEF, "other") == ("held", 0)
        await asyncio.sleep(0.03)


async def test_an_attempt_given_back_does_not_count(store: Store) -> None:
    """Waiting is no failure; the deadline runs on unless the wait was nobody's fault."""
    job = await create(store)
    for _ in range(5):
        assert await jobs.begin_step(store, job, BRIEF, "w") == ("begun", 1)
        await jobs.end_step(store, job.id, "fence", 1, "pending", {}, "agent away", give_back=True)
    step = (await jobs.get(store, job.id)).steps["fence"]
    assert (step.attempts, step.state, step.error) == (0, "pending", "agent away")
    assert step.began_ms > 0
    await jobs.begin_step(store, job, BRIEF, "w")
    await jobs.end_step(store, job.id, "fence", 1, "pending", give_back=True, restart_clock=True)
    assert (await jobs.get(store, job.id)).steps["fence"].began_ms == 0


async def test_a_pause_keeps_a_step_from_beginning_too_soon(store: Store) -> None:
    """Back-off is in the record, not in a worker's memory."""
    job = await create(store)
    await jobs.begin_step(store, job, BRIEF, "w")
    await jobs.end_step(store, job.id, "fence", 1, "pending", {}, "boom", pause_ms=60_000)
    assert await jobs.begin_step(store, job, BRIEF, "w") == ("early", 0)
    later = await jobs.get(store, job.id)
    assert later.ready(int(time.time() * 1_000)) == []
    assert [plan.name for plan in later.ready(int(time.time() * 1_000) + 61_000)] == ["fence"]


async def test_a_step_whose_tries_are_used_up_has_failed_with_its_last_error(store: Store) -> None:
    """Nobody can begin it again."""
    job = await create(store)
    for attempt in range(1, 4):
        assert await jobs.begin_step(store, job, BRIEF, "w") == ("begun", attempt)
        await jobs.end_step(store, job.id, "fence", attempt, "pending", {}, f"boom {attempt}")
    assert (await jobs.begin_step(store, job, BRIEF, "w"))[0] == "spent"
    step = (await jobs.get(store, job.id)).steps["fence"]
    assert (step.state, step.attempts) == ("failed", 3)
    assert "boom 3" in step.error
    assert (await jobs.begin_step(store, job, BRIEF, "w"))[0] == "closed"


async def test_an_ended_job_is_closed_to_every_step(store: Store) -> None:
    """A cancelled job's worker loses its lease with the next renewal; ending happens once."""
    job = await create(store)
    await jobs.begin_step(store, job, FENCE, "w")
    assert await jobs.end(store, job, JobState.CANCELLED, "by hand")
    assert not await jobs.end(store, job, JobState.FAILED, "too late")
    with pytest.raises(StepLost):
        await jobs.prolong_step(store, job.id, FENCE, 1, "w")
    assert (await jobs.begin_step(store, job, REQUEUE, "w"))[0] == "closed"
    ended = await jobs.get(store, job.id)
    assert (ended.state, ended.error) == (JobState.CANCELLED, "by hand")
    assert ended.ended_ms > 0
    assert await jobs.live_of(store, "a") is None
    _, created = await jobs.create(store, "a", 7, cause="c", evidence="", started_by="sentinel")
    assert not created
    assert await jobs.live(store) == []


async def test_live_jobs_forget_what_ended_or_vanished(store: Store) -> None:
    """A worker killed between two writes leaves no ghost."""
    job = await create(store)
    await store.redis.sadd(LIVE_JOBS, "ghost.1")
    assert [found.id for found in await jobs.live(store)] == [job.id]
    assert await store.redis.smembers(LIVE_JOBS) == {job.id}


async def test_the_history_names_who_did_what_and_can_be_read_on(store: Store) -> None:
    """Requirements E5: from the evidence to the end."""
    job = await create(store)
    await finish(store, job, FENCE)
    rows = await jobs.audit(store, job.id)
    assert [entry["event"] for _, entry in rows] == ["job.created", "step.begun", "step.succeeded"]
    assert rows[0][1]["evidence"] == "pid 7 signal 9"
    assert rows[1][1]["by"] == "w-fence"
    await jobs.end(store, job, JobState.FAILED, "x")
    assert [entry["event"] for _, entry in await jobs.audit(store, job.id, rows[-1][0])] == ["job.failed"]


async def test_jobs_are_listed_newest_first_and_unknown_ones_named(store: Store) -> None:
    """By creation."""
    for epoch in (1, 2, 3):
        await create(store, epoch)
        await asyncio.sleep(0.002)
    assert [job.epoch for job in await jobs.newest(store, 2)] == [3, 2]
    with pytest.raises(UnknownJob, match="nothing"):
        await jobs.get(store, "nothing")
