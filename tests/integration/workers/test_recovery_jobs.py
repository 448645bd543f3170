"""Whole jobs on real Celery workers, a real dispatcher and real gRPC; only the engine is missing."""

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

import aiohttp

from recovery import events, jobs, journal, limits, registry
from recovery.jobs import JobState
from recovery.journal import Entry
from recovery.registry import NodeState
from recovery.store import Store, inbox_key
from tests.rigs.deaths import ended, report_death, step_is
from tests.rigs.fake_node import Script, fake_node
from tests.rigs.workers import WorkerSet, until

NewNode = Callable[[], str]


async def test_a_death_becomes_a_job_that_brings_the_node_to_probation(store: Store, new_node: NewNode) -> None:
    """Every step succeeds once, in order, under one new epoch, and everybody is told."""
    name = new_node()
    async with fake_node(store, name) as agent:
        seen = await events.last_id(store)

        job = await ended(store, await report_death(store, name, agent.epoch))

        assert (job.state, job.error) == (JobState.SUCCEEDED, "")
        assert [step.state for step in job.steps.values()] == ["succeeded"] * 6
        assert [step.attempts for step in job.steps.values()] == [1] * 6
        chain = [job.steps[name] for name in ("fence", "reclaim", "restart", "warm_up", "requeue_waiting")]
        for before, after in itertools.pairwise(chain):
            assert before.began_ms <= before.ended_ms <= after.began_ms
        node = await registry.get(store, name)
        assert (node.state, node.weight, node.epoch, node.job) == (NodeState.PROBATION, 0.0, job.new_epoch, job.id)
        assert {epoch for _, epoch in agent.calls} == {job.new_epoch}
        assert [call for call, _ in agent.calls if call != "Fence"] == ["Reclaim", "Start", "WarmUp"]
        assert agent.called("Fence") == 1
        told = [event for event in await _events(store, seen) if event.node == name]
        states = [event.fields["state"] for event in told if event.kind == "node.state"]
        assert states == ["RECOVERING", "WARMING", "PROBATION"]
        job_states = [event.fields["state"] for event in told if event.kind == "job.state"]
        assert (job_states[0], job_states[-1]) == ("queued", "succeeded")
        assert await jobs.live_of(store, name) is None


async def test_requests_of_the_dead_epoch_move_to_a_peer_before_the_node_is_back(
    store: Store, new_node: NewNode
) -> None:
    """The first wave goes to the peer's inboxes by compare-and-set; one that a gateway moved is left alone."""
    dead, peer = new_node(), new_node()
    model = f"model-of-{dead}"
    same: dict[str, Any] = {"model": model, "identity": f"{model}@1"}
    async with fake_node(store, dead, Script(start_s=1.0), **same) as agent, fake_node(store, peer, **same) as other:
        requests = [f"{dead}-{number}" for number in range(4)]
        for request in requests:
            entry = Entry(request, "gw1", 0, dead, agent.epoch, 10, 50, 5, same["identity"], model)
            await journal.open_entry(store, entry, list(range(10)), {}, 60)
        await journal.assign(store, requests[0], 0, peer, other.epoch, "gateway:gw1")

        job = await ended(store, await report_death(store, dead, agent.epoch))

        assert job.state is JobState.SUCCEEDED
        assert job.steps["requeue"].outcome["peer"] == 3
        assert job.steps["requeue"].ended_ms < job.steps["restart"].ended_ms
        orders = [
            journal.parse_assignment(fields)
            for _, fields in await store.redis.xrange(inbox_key("gw1"))
            if fields["request"] in requests
        ]
        assert sorted((order.request, order.attempt, order.route, order.node, order.epoch) for order in orders) == [
            (request, 1, "peer", peer, other.epoch) for request in requests[1:]
        ]


async def test_requests_without_a_peer_wait_for_their_node_and_then_get_it(store: Store, new_node: NewNode) -> None:
    """The first wave says wait, the second one gives the recovered node under its new epoch."""
    name = new_node()
    model = f"model-of-{name}"
    async with fake_node(store, name, model=model, identity=model) as agent:
        entry = Entry(f"{name}-r", f"gw-{name}", 0, name, agent.epoch, 10, 50, 5, model, model)
        await journal.open_entry(store, entry, list(range(10)), {}, 60)

        job = await ended(store, await report_death(store, name, agent.epoch))

        orders = [journal.parse_assignment(fields) for _, fields in await store.redis.xrange(inbox_key(f"gw-{name}"))]
        assert [(order.route, order.attempt, order.node, order.epoch) for order in orders] == [
            ("wait", 0, name, job.new_epoch),
            ("peer", 1, name, job.new_epoch),
        ]


async def test_an_engine_that_dies_while_it_warms_up_is_replaced(store: Store, new_node: NewNode) -> None:
    """No repetition of the warm-up would mend it: the step starts another engine under the same epoch."""
    name = new_node()
    async with fake_node(store, name, Script(warm_up_errors=["the engine died"])) as agent:
        job = await ended(store, await report_death(store, name, agent.epoch))

        assert (job.state, job.error) == (JobState.SUCCEEDED, "")
        assert agent.starts == 2
        assert [call for call, _ in agent.calls if call != "Fence"] == ["Reclaim", "Start", "WarmUp", "Start", "WarmUp"]
        assert (await registry.get(store, name)).state is NodeState.PROBATION


async def test_engines_that_never_warm_up_are_not_replaced_for_ever(store: Store, new_node: NewNode) -> None:
    """The restart budget ends it, and the reason names the last failure."""
    name = new_node()
    async with fake_node(store, name, Script(warm_up_errors=["the engine died"] * 20)) as agent:
        job = await ended(store, await report_death(store, name, agent.epoch))

        assert job.state is JobState.FAILED
        assert "restart budget used up" in job.error
        assert "the engine died" in job.error
        assert (await registry.get(store, name)).state is NodeState.QUARANTINED


async def test_two_reports_of_one_death_lead_to_one_job(store: Store, new_node: NewNode) -> None:
    """Whoever asks, a (node, epoch) is recovered once."""
    name = new_node()
    async with fake_node(store, name) as agent:
        epoch = agent.epoch
        await asyncio.gather(report_death(store, name, epoch), report_death(store, name, epoch))
        job = await ended(store, jobs.job_id(name, epoch))
        await report_death(store, name, epoch)
        assert job.state is JobState.SUCCEEDED
        assert agent.starts == 1
        assert [found.id for found in await jobs.newest(store) if found.node == name] == [job.id]


async def test_a_job_created_by_hand_runs_like_any_other(store: Store, new_node: NewNode) -> None:
    """The API only writes the record; the dispatcher hears of it."""
    name = new_node()
    async with fake_node(store, name) as agent:
        job, _ = await jobs.create(store, name, agent.epoch, cause="manual", evidence="", started_by="user:ann")
        assert (await ended(store, job.id)).state is JobState.SUCCEEDED


async def test_a_job_waits_for_an_agent_that_is_away_and_goes_on_when_it_is_back(
    store: Store, new_node: NewNode
) -> None:
    """The fence does not need the agent; its absence costs no attempt."""
    name = new_node()
    async with fake_node(store, name) as agent:
        epoch = agent.epoch
        await agent.close()
        job_id = await report_death(store, name, epoch)
        await step_is(store, job_id, "reclaim", lambda step: bool(step.error))
        await agent.open()
        job = await ended(store, job_id)
        assert job.state is JobState.SUCCEEDED
        assert job.steps["reclaim"].attempts == 1


async def test_an_engine_that_never_starts_ends_in_quarantine_with_its_own_words(
    store: Store, new_node: NewNode
) -> None:
    """Three starts, then nobody tries again; a human's recovery gets a fresh budget."""
    name = new_node()
    async with fake_node(store, name, Script(start_errors=["no such model file: /m.gguf"] * 3)) as agent:
        job = await ended(store, await report_death(store, name, agent.epoch))

        assert job.state is JobState.FAILED
        assert "restart" in job.error
        assert "no such model file: /m.gguf" in job.error
        node = await registry.get(store, name)
        assert (node.state, node.weight) == (NodeState.QUARANTINED, 0.0)
        assert "no such model file" in node.detail
        assert agent.starts == 3

        again, created = await jobs.create(store, name, node.epoch, cause="manual", evidence="", started_by="user:ann")
        assert created
        assert (await ended(store, again.id)).state is JobState.SUCCEEDED
        assert agent.starts == 4


async def test_an_engine_that_works_and_dies_again_is_brought_back_more_often_than_one_that_never_works(
    store: Store, new_node: NewNode
) -> None:
    """Starts that succeeded are not held against the node as vain ones are."""
    name = new_node()
    async with fake_node(store, name, Script()) as agent:
        epoch = agent.epoch
        for _ in range(4):
            job = await ended(store, await report_death(store, name, epoch))
            assert job.state is JobState.SUCCEEDED, job.error
            epoch = job.new_epoch
        assert (await registry.get(store, name)).state is NodeState.PROBATION
        assert agent.starts == 4


async def test_an_engine_that_dies_without_end_is_given_up_with_the_cause(store: Store, new_node: NewNode) -> None:
    """However well it starts each time: that is no recovery but a loop."""
    # Given a node whose budget of recoveries is spent
    name = new_node()
    for number in range(30):
        assert await limits.spend(store, f"recoveries:{name}", f"earlier.{number}", 30, 600.0)
    async with fake_node(store, name, Script()) as agent:
        # When its engine dies once more
        job = await ended(store, await report_death(store, name, agent.epoch))
        # Then nobody starts another
        assert job.state is JobState.FAILED
        assert "recovery budget used up: 30 recoveries" in job.error
        assert agent.starts == 0
        assert (await registry.get(store, name)).state is NodeState.QUARANTINED


async def test_the_death_of_a_try_is_left_to_the_job_that_made_it(store: Store, new_node: NewNode) -> None:
    """A sentinel reports the engine that failed to start; the job tries again and no second job begins."""
    name = new_node()
    async with fake_node(store, name, Script(start_s=0.5, start_errors=["out of memory"])) as agent:
        job_id = await report_death(store, name, agent.epoch)
        await step_is(store, job_id, "restart", lambda step: step.state == "running")
        new = (await jobs.get(store, job_id)).new_epoch
        await registry.set_state(store, name, new, NodeState.DEAD)
        await report_death(store, name, new)

        job = await ended(store, job_id)

        assert (job.state, job.steps["restart"].attempts) == (JobState.SUCCEEDED, 2)
        assert (await registry.get(store, name)).state is NodeState.PROBATION
        assert [found.id for found in await jobs.newest(store) if found.node == name] == [job_id]


async def test_memory_that_cannot_be_proven_free_needs_an_operator(store: Store, new_node: NewNode) -> None:
    """Nothing is started on a node where something of the old engine may live."""
    name = new_node()
    script = Script(nothing_left=False, reclaim_detail="pid 99 holds 4 GB and is not ours")
    async with fake_node(store, name, script) as agent:
        job = await ended(store, await report_death(store, name, agent.epoch))
        assert job.state is JobState.NEEDS_OPERATOR
        assert "pid 99" in job.error
        assert (await registry.get(store, name)).state is NodeState.NEEDS_OPERATOR
        assert agent.starts == 0


async def test_a_node_that_moved_on_by_itself_is_left_alone(store: Store, new_node: NewNode) -> None:
    """Its agent restarted and took a new epoch: only the old epoch's requests are requeued."""
    name = new_node()
    async with fake_node(store, name) as agent:
        old = agent.epoch
        current = await agent.register(store)
        job = await ended(store, await report_death(store, name, old))
        assert job.state is JobState.SUCCEEDED
        assert job.steps["fence"].outcome == {"superseded_by": current}
        assert [job.steps[step].state for step in ("reclaim", "restart", "warm_up")] == ["skipped"] * 3
        assert (await registry.get(store, name)).state is NodeState.ALIVE
        assert agent.calls == []


async def test_an_event_nobody_can_handle_is_buried_and_the_next_one_is_handled(
    store: Store, new_node: NewNode
) -> None:
    """One bad event neither stops the dispatcher nor comes back for ever."""
    name = new_node()
    await store.redis.xadd("unbroken:events", {"kind": "node.dead", "node": name, "epoch": "seven"})
    async with fake_node(store, name) as agent:
        job = await ended(store, await report_death(store, name, agent.epoch))
        assert job.state is JobState.SUCCEEDED

    async def buried() -> bool:
        return any(fields.get("node") == name for _, fields in await store.redis.xrange("unbroken:events:dead"))

    await until(buried, "the bad event lies in the dead letters", 40.0)


async def test_flower_sees_the_tasks_of_a_recovery(store: Store, workers: WorkerSet, new_node: NewNode) -> None:
    """Asked over HTTP, it names the steps and their node, epoch and job."""
    name = new_node()
    flower, url = workers.flower()
    flower.start()
    try:
        async with aiohttp.ClientSession() as session:

            async def sees_workers() -> bool:
                try:
                    async with session.get(f"{url}/workers?json=1") as reply:
                        data = (await reply.json())["data"] if reply.status == 200 else []
                except aiohttp.ClientError:
                    return False
                return len(data) >= 2

            await until(sees_workers, "Flower knows the workers", 60.0)
            async with fake_node(store, name) as agent:
                job = await ended(store, await report_death(store, name, agent.epoch))

            async def tasks() -> dict[str, str]:
                async with session.get(f"{url}/api/tasks") as reply:
                    assert reply.status == 200
                    found = {
                        task["name"]: task for task in (await reply.json()).values() if name in str(task["kwargs"])
                    }
                wanted = {"recovery.fence", "recovery.reclaim", "recovery.restart", "recovery.warm_up"}
                done = {key for key, task in found.items() if task["state"] == "SUCCESS"}
                return {key: task["kwargs"] for key, task in found.items()} if wanted <= done else {}

            seen = await until(tasks, "Flower saw every task end")
            assert job.id in seen["recovery.fence"]
    finally:
        flower.stop()


async def _events(store: Store, after: str) -> list[events.Event]:
    async with store.reader() as reader:
        return await events.read(reader, after, block_ms=100)
