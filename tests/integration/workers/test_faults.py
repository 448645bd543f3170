"""Workers, broker and limits hurt in the middle of a job: the job ends all the same, each test with its own stack."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from recovery import jobs, registry
from recovery.jobs import JobState
from recovery.registry import NodeState
from recovery.store import Store
from tests.rigs.deaths import ended, report_death, step_is
from tests.rigs.fake_node import Script, fake_node
from tests.rigs.valkey import Valkey
from tests.rigs.workers import WorkerSet, until


@pytest.fixture(scope="module")
def worker_env() -> dict[str, str]:
    """One takeover at a time."""
    return {"UNBROKEN_LIMITS__TAKEOVERS": "1"}


async def test_a_killed_worker_child_delays_a_slow_step_by_seconds(
    store: Store, workers: WorkerSet, new_node: Callable[[], str]
) -> None:
    """Its lease lapses, another worker joins the start under way: the engine is not started twice."""
    name = new_node()
    async with fake_node(store, name, Script(start_s=8.0)) as agent:
        job_id = await report_death(store, name, agent.epoch)
        step = await step_is(store, job_id, "restart", lambda step: step.state == "running")
        victim = int(step.holder.split(":")[1])
        assert victim in workers.slow.children()
        await until(_is(lambda: agent.called("Start") == 1), "the agent heard the first Start")

        os.kill(victim, signal.SIGKILL)

        job = await ended(store, job_id)
        assert job.state is JobState.SUCCEEDED
        assert job.steps["restart"].attempts == 2
        assert agent.called("Start") == 2
        assert agent.starts == 1


async def test_a_killed_worker_process_is_replaced_and_its_step_taken_over(
    store: Store, workers: WorkerSet, new_node: Callable[[], str]
) -> None:
    """Parent and children die at once, as with a machine; a new worker set finds the job waiting."""
    name = new_node()
    async with fake_node(store, name, Script(start_s=3.0)) as agent:
        job_id = await report_death(store, name, agent.epoch)
        await until(_is(lambda: agent.called("Start") == 1), "the agent heard the first Start")

        workers.slow.kill()
        workers.slow.start()

        job = await ended(store, job_id, 60.0)
        assert job.state is JobState.SUCCEEDED
        assert agent.starts == 1


async def test_a_worker_told_to_stop_lets_its_step_end(
    store: Store, workers: WorkerSet, new_node: Callable[[], str]
) -> None:
    """TERM is no death: the start under way is finished and counted once, the next step waits for the next worker."""
    name = new_node()
    async with fake_node(store, name, Script(start_s=1.5)) as agent:
        job_id = await report_death(store, name, agent.epoch)
        await until(_is(lambda: agent.called("Start") == 1), "the agent heard the Start")
        children = workers.slow.children()

        await asyncio.to_thread(workers.slow.stop)

        assert not [pid for pid in children if Path(f"/proc/{pid}").exists()]
        step = (await jobs.get(store, job_id)).steps["restart"]
        assert (step.state, step.attempts) == ("succeeded", 1)
        workers.slow.start()
        assert (await ended(store, job_id, 60.0)).state is JobState.SUCCEEDED
        assert (agent.called("Start"), agent.starts) == (1, 1)


async def test_a_killed_dispatcher_finds_its_events_again(
    store: Store, workers: WorkerSet, new_node: Callable[[], str]
) -> None:
    """A death reported while it was down becomes a job when it is back."""
    name = new_node()
    async with fake_node(store, name) as agent:
        workers.dispatcher.kill()
        job_id = await report_death(store, name, agent.epoch)
        workers.dispatcher.start()
        assert (await ended(store, job_id, 60.0)).state is JobState.SUCCEEDED


async def test_takeovers_beyond_the_limit_wait_for_their_turn(store: Store, new_node: Callable[[], str]) -> None:
    """With one permit, two nodes are reclaimed and restarted one after the other, both fenced at once."""
    first, second = new_node(), new_node()
    slow = Script(start_s=2.0)
    async with fake_node(store, first, slow) as one, fake_node(store, second, slow) as two:
        ids = [await report_death(store, first, one.epoch), await report_death(store, second, two.epoch)]
        done = [await ended(store, job_id) for job_id in ids]

        assert [job.state for job in done] == [JobState.SUCCEEDED] * 2
        early, late = sorted(done, key=lambda job: job.steps["warm_up"].ended_ms)
        assert late.steps["reclaim"].began_ms >= early.steps["warm_up"].began_ms
        assert late.steps["fence"].ended_ms < early.steps["restart"].ended_ms
        assert late.steps["reclaim"].attempts == 1


async def test_a_job_cancelled_by_hand_stops_its_step_under_way(store: Store, new_node: Callable[[], str]) -> None:
    """The worker learns of it with its next renewal and ends the call to the agent."""
    name = new_node()
    async with fake_node(store, name, Script(start_s=30.0)) as agent:
        job_id = await report_death(store, name, agent.epoch)
        await until(_is(lambda: agent.called("Start") == 1), "the agent heard the Start")
        assert await jobs.end(store, await jobs.get(store, job_id), JobState.CANCELLED, "a test said so")
        other = new_node()
        async with fake_node(store, other) as free:
            # The permit of the cancelled job lapses by itself.
            assert (await ended(store, await report_death(store, other, free.epoch))).state is JobState.SUCCEEDED
        assert (await jobs.get(store, job_id)).state is JobState.CANCELLED


async def test_a_redis_killed_in_the_middle_of_a_step_is_survived_by_workers_and_job(
    store: Store, server: Valkey, workers: WorkerSet, new_node: Callable[[], str]
) -> None:
    """Celery 5.7.0 exits when Redis dies while a task is unacknowledged; ours must live on and end the job."""
    name = new_node()
    before = [process.pid for process in workers.all]
    async with fake_node(store, name, Script(start_s=3.0)) as agent:
        job_id = await report_death(store, name, agent.epoch)
        await step_is(store, job_id, "restart", lambda step: step.state == "running")
        # The server writes its file each second; what is younger may be lost.
        await asyncio.sleep(1.2)

        server.restart(signal.SIGKILL)

        job = await ended(store, job_id, 60.0)
        assert job.state is JobState.SUCCEEDED
        assert agent.starts == 1
        assert (await registry.get(store, name)).state is NodeState.PROBATION
    assert [process.pid for process in workers.all if process.running] == before


async def test_a_worker_nobody_listens_to_stops_when_told_although_redis_is_away(
    tmp_path: Path, own_valkey: Valkey
) -> None:
    """A stack that lost its supervisor and its Redis at once leaves nothing behind."""
    # Given a worker whose output nobody reads
    worker = WorkerSet(own_valkey.url, tmp_path).fast
    worker.start_unheard()
    try:
        await until(_is(lambda: len(worker.children()) == 2), "both its children")
        await asyncio.sleep(2)  # it says nothing anybody could wait for
        # When it is told to stop, and its broker goes as well
        os.kill(worker.pid, signal.SIGTERM)
        own_valkey.stop(signal.SIGKILL)
        # Then it ends
        await until(_is(lambda: not worker.running), "the end of the worker", 15.0)
    finally:
        worker.kill()


async def test_a_redis_that_came_back_empty_gets_its_consumer_group_back(
    store: Store, workers: WorkerSet, new_node: Callable[[], str]
) -> None:
    """The next death after the loss is dispatched."""
    await store.redis.flushall()
    name = new_node()
    async with fake_node(store, name) as agent:
        job = await ended(store, await report_death(store, name, agent.epoch), 60.0)
        assert job.state is JobState.SUCCEEDED


def _is(judge: Callable[[], bool]) -> Callable[[], Awaitable[bool]]:
    async def ask() -> bool:
        return judge()

    return ask
