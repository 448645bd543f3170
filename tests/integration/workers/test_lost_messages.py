"""Celery loses, repeats and delays: the job's own record decides, so every recovery ends once (reported failures G5-*).

Real workers, real dispatcher, real Redis; only the engine is missing.
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Callable

import aiohttp

from recovery import config, jobs, registry
from recovery.jobs import JobState
from recovery.registry import NodeState
from recovery.store import Store
from tests.integration.workers.test_faults import _is
from tests.rigs.deaths import ended, report_death, step_is
from tests.rigs.fake_node import FakeNodeAgent, Script, fake_node
from tests.rigs.valkey import Valkey
from tests.rigs.workers import WorkerSet, until
from workers.app import create_app
from workers.nudge import Nudger

NewNode = Callable[[], str]


@contextlib.asynccontextmanager
async def nudger(url: str) -> AsyncIterator[Nudger]:
    """What sends the steps' messages."""
    app = create_app(config.load(redis={"url": url}))
    sender = Nudger(app)
    try:
        yield sender
    finally:
        sender.close()
        app.close()


async def test_a_message_delivered_many_times_has_one_effect(store: Store, server: Valkey, new_node: NewNode) -> None:
    """While its step runs and after the job's end, each time under another task id (case G5-01)."""
    name = new_node()
    async with fake_node(store, name, Script(start_s=2.0)) as agent, nudger(server.url) as sender:
        job_id = await report_death(store, name, agent.epoch)
        await step_is(store, job_id, "restart", lambda step: step.state == "running")
        job = await jobs.get(store, job_id)
        for _ in range(5):
            for plan in job.plan:
                await sender.send(job, plan)

        done = await ended(store, job_id)

        assert done.state is JobState.SUCCEEDED
        assert [step.attempts for step in done.steps.values()] == [1] * 6
        calls, audit = list(agent.calls), await _history(store, job_id)
        for plan in job.plan:
            await sender.send(job, plan)
        await _queues_are_empty(store)
        assert (agent.calls, await _history(store, job_id)) == (calls, audit)
        assert (agent.called("Start"), agent.starts) == (1, 1)


async def test_a_step_that_kills_its_worker_each_time_ends_the_job(
    store: Store, workers: WorkerSet, new_node: NewNode
) -> None:
    """Counted on the job's own record, whatever ids Celery makes up; the queue goes on for others (case G5-02)."""
    name, other = new_node(), new_node()
    async with fake_node(store, name, Script(start_s=60.0)) as agent:
        job_id = await report_death(store, name, agent.epoch)
        for attempt in (1, 2, 3):
            step = await step_is(
                store, job_id, "restart",
                lambda step, attempt=attempt: step.state == "running" and step.attempts == attempt,  # type: ignore[misc]
            )  # fmt: skip
            victim = int(step.holder.split(":")[1])
            assert victim in workers.slow.children()
            os.kill(victim, signal.SIGKILL)

        job = await ended(store, job_id)

        assert job.state is JobState.FAILED
        assert "restart: all 3 tries are used up" in job.error
        assert (job.steps["restart"].state, job.steps["warm_up"].state) == ("failed", "pending")
        node = await registry.get(store, name)
        assert (node.state, node.weight) == (NodeState.QUARANTINED, 0.0)
    async with fake_node(store, other) as healthy:
        assert (await ended(store, await report_death(store, other, healthy.epoch))).state is JobState.SUCCEEDED


async def test_a_worker_that_slept_through_its_lease_changes_nothing_when_it_wakes(
    store: Store, workers: WorkerSet, new_node: NewNode
) -> None:
    """Another one took over and brought the node back; the sleeper finds its lease gone (case G5-06)."""
    name = new_node()
    async with fake_node(store, name, Script(start_s=5.0)) as agent:
        job_id = await report_death(store, name, agent.epoch)
        await until(_is(lambda: agent.called("Start") == 1), "the agent heard the first Start")
        sleeper = int((await jobs.get(store, job_id)).steps["restart"].holder.split(":")[1])
        os.kill(sleeper, signal.SIGSTOP)
        try:
            job = await ended(store, job_id)
            assert job.state is JobState.SUCCEEDED
            assert job.steps["restart"].attempts == 2
            node, calls = await registry.get(store, name), list(agent.calls)
        finally:
            os.kill(sleeper, signal.SIGCONT)
        await until(_is(lambda: "step.lost" in workers.slow.said()), "the sleeper noticed")
        after = await jobs.get(store, job_id)
        assert (after.state, after.steps) == (job.state, job.steps)
        assert (agent.calls, agent.starts) == (calls, 1)
        assert (await registry.get(store, name)).epoch == node.epoch


async def test_recoveries_whose_messages_vanish_all_end(store: Store, workers: WorkerSet, new_node: NewNode) -> None:
    """Popped and dropped, and workers told to stop in between: the record has the intent (case G5-04)."""
    names = [new_node() for _ in range(12)]
    async with contextlib.AsyncExitStack() as stack:
        agents = [await stack.enter_async_context(fake_node(store, name)) for name in names]
        ids = [await report_death(store, agent.node, agent.epoch) for agent in agents]
        dropped = 0
        for turn in range(40):
            dropped += await _drop_messages(store)
            if turn == 20:
                await asyncio.to_thread(workers.slow.stop)
                workers.slow.start()
            await asyncio.sleep(0.05)
        assert dropped, "no message was there to be dropped"
        done = [await ended(store, job_id, 60.0) for job_id in ids]
        assert [job.state for job in done] == [JobState.SUCCEEDED] * len(names)
        assert [agent.starts for agent in agents] == [1] * len(names)


async def test_workers_forked_anew_speak_to_agents_at_once(store: Store, workers: WorkerSet, new_node: NewNode) -> None:
    """Every child killed, ten jobs through the new ones: no channel was made before the fork (case G7-04)."""
    old = [*workers.fast.children(), *workers.slow.children()]
    for pid in old:
        os.kill(pid, signal.SIGKILL)
    names = [new_node() for _ in range(10)]
    async with contextlib.AsyncExitStack() as stack:
        agents: list[FakeNodeAgent] = [await stack.enter_async_context(fake_node(store, name)) for name in names]
        ids = [await report_death(store, agent.node, agent.epoch) for agent in agents]
        done = [await ended(store, job_id, 60.0) for job_id in ids]
        assert [job.state for job in done] == [JobState.SUCCEEDED] * len(names)
        # Each call that got through did so within its own deadline, else there would be a second attempt.
        assert {step.attempts for job in done for step in job.steps.values()} == {1}
    assert not {*workers.fast.children(), *workers.slow.children()} & set(old)


async def test_what_flower_forgets_the_record_keeps(store: Store, workers: WorkerSet, new_node: NewNode) -> None:
    """A restarted Flower knows nothing of before; jobs and their history are whole, new tasks show in both (G5-10)."""
    flower, url = workers.flower()
    async with contextlib.AsyncExitStack() as stack:
        session = await stack.enter_async_context(aiohttp.ClientSession())
        before = await _recovered(store, await stack.enter_async_context(fake_node(store, new_node())))
        history = await _history(store, before)

        async def shows(job: str) -> bool:
            try:
                async with session.get(f"{url}/api/tasks") as reply:
                    return reply.status == 200 and job in await reply.text()
            except aiohttp.ClientError:
                return False

        async def sees_workers() -> bool:
            try:
                async with session.get(f"{url}/workers?json=1") as reply:
                    return reply.status == 200 and len((await reply.json())["data"]) >= 2
            except aiohttp.ClientError:
                return False

        try:
            flower.start()
            await until(sees_workers, "Flower knows the workers", 60.0)
            assert not await shows(before)
            after = await _recovered(store, await stack.enter_async_context(fake_node(store, new_node())))
            await until(lambda: shows(after), "Flower shows the new job's tasks")
        finally:
            flower.stop()
        assert [job.id for job in await jobs.newest(store)][:2] == [after, before]
        assert await _history(store, before) == history
        assert {entry["step"] for entry in history if entry["event"] == "step.succeeded"} == {
            plan.name for plan in jobs.RECOVER
        }


async def _recovered(store: Store, agent: FakeNodeAgent) -> str:
    job = await ended(store, await report_death(store, agent.node, agent.epoch))
    assert job.state is JobState.SUCCEEDED
    return job.id


async def _history(store: Store, job: str) -> list[dict[str, object]]:
    return [entry for _, entry in await jobs.audit(store, job)]


async def _drop_messages(store: Store) -> int:
    names = ("recovery.fast", "recovery.slow", "unacked", "unacked_index")
    return int(await store.redis.delete(*(f"unbroken:celery:{name}" for name in names)))


async def _queues_are_empty(store: Store) -> None:
    async def empty() -> bool:
        left = [
            await store.redis.exists(f"unbroken:celery:{name}")
            for name in ("recovery.fast", "recovery.slow", "unacked")
        ]
        return not any(left)

    await until(empty, "every message was taken and acknowledged")
