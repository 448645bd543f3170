"""Several sentinels: shares, majorities, and what becomes of a dead one's nodes; real Redis, gRPC and processes."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

import structlog

from protocol import unbroken_pb2 as pb
from recovery import events, leases, registry
from recovery.events import Kind
from recovery.registry import NodeState
from recovery.store import HEARTBEATS, SENTINELS, Store
from tests.integration.detectors.test_process import start
from tests.integration.detectors.test_sentinel import read_events, sentinel, until, until_state
from tests.rigs.fake_agent import FakeAgent, fake_agent
from tests.rigs.fake_llamacpp import fake_llamacpp

NODES = ("a", "b", "c", "d", "e", "f")


@contextlib.asynccontextmanager
async def fleet(store: Store) -> AsyncIterator[dict[str, FakeAgent]]:
    """Run and register several agents."""
    async with contextlib.AsyncExitStack() as stack:
        agents = {name: await stack.enter_async_context(fake_agent(name)) for name in NODES}
        for agent in agents.values():
            await agent.join(store)
        yield agents


@contextlib.asynccontextmanager
async def other_member(store: Store, name: str) -> AsyncIterator[None]:
    """Be a living sentinel that never says anything."""

    async def renew() -> None:
        while True:
            await store.run("member_renew", [SENTINELS], [name, 1_500])
            await asyncio.sleep(0.3)

    await store.run("member_renew", [SENTINELS], [name, 1_500])
    task = asyncio.create_task(renew())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def members(store: Store) -> set[str]:
    """Return who is a member now."""
    return set((await store.run("member_renew", [SENTINELS], ["nobody", 0]))[3:])


async def primaries(store: Store) -> dict[str, set[str]]:
    """Return who wrote heartbeats of each node within the last two seconds."""
    seconds, _ = await store.redis.time()
    found: dict[str, set[str]] = {name: set() for name in NODES}
    for _, beat in await store.redis.xrange(HEARTBEATS, min=(seconds - 2) * 1_000):
        found[beat["node"]].add(beat["sentinel"])
    return found


async def test_two_sentinels_agree_on_a_death_that_nobody_has_proven(redis_url: str, store: Store) -> None:
    """Each votes, with what it saw; the verdict names both."""
    async with fake_agent("a") as agent:
        await agent.join(store)
        async with contextlib.AsyncExitStack() as stack:
            with structlog.testing.capture_logs() as logs:
                for name in ("s1", "s2"):
                    await stack.enter_async_context(sentinel(redis_url, sentinel={"id": name}))
                await until(lambda: sum(line.get("sentinels") == ["s1", "s2"] for line in logs) == 2)
            await until_state(store, NodeState.ALIVE)
            await until(lambda: agent.open == 2)
            await agent.stop()
            await until_state(store, NodeState.DEAD)
            (verdict, *_) = await read_events(store, Kind.NODE_DEAD)
            votes = await read_events(store, Kind.NODE_VOTE)
    assert verdict.fields["cause"] == "link"
    assert verdict.fields["evidence"].startswith("2 of 2 sentinels: ")
    assert all(f"{name}: link: " in verdict.fields["evidence"] for name in ("s1", "s2"))
    assert {vote.fields["sentinel"] for vote in votes} == {"s1", "s2"}
    assert all(vote.epoch == 1 and vote.fields["evidence"] for vote in votes)


async def test_a_sentinel_alone_in_doubt_kills_nobody_until_the_other_agrees(redis_url: str, store: Store) -> None:
    """The other one lives and has not voted: it may well see the node."""
    async with fake_agent("a") as agent, other_member(store, "s2"):
        await agent.join(store, NodeState.ALIVE, weight=1.0)
        async with sentinel(redis_url, sentinel={"id": "s1"}):
            await until(lambda: agent.pings > 5)
            await agent.stop()
            # As many votes as fill a second and more
            votes = await until(lambda: read_events(store, Kind.NODE_VOTE), lambda votes: len(votes) > 7)
            assert await read_events(store, Kind.NODE_DEAD) == []
            # When
            said = {"cause": "lease", "evidence": "no", "sentinel": "s2"}
            await events.publish(store, Kind.NODE_VOTE, {"node": "a", "epoch": 1, "took_ms": 1, **said})
            (verdict, *_) = await until(lambda: read_events(store, Kind.NODE_DEAD))
    assert {vote.fields["sentinel"] for vote in votes} == {"s1"}
    assert "s2: lease: no" in verdict.fields["evidence"]


async def test_nobody_waits_for_the_vote_of_a_sentinel_that_is_gone(redis_url: str, store: Store) -> None:
    """Its membership lapses; then one is enough."""
    async with fake_agent("a") as agent:
        await agent.join(store, NodeState.ALIVE, weight=1.0)
        async with sentinel(redis_url, sentinel={"id": "s1"}):
            async with other_member(store, "s2"):
                await until(lambda: agent.pings > 5)
                await agent.stop()
                await until(lambda: read_events(store, Kind.NODE_VOTE), lambda votes: len(votes) > 3)
                assert await read_events(store, Kind.NODE_DEAD) == []
            await until_state(store, NodeState.DEAD)
            (verdict,) = await read_events(store, Kind.NODE_DEAD)
    assert verdict.fields["sentinel"] == "s1"


async def test_what_is_proven_needs_no_majority(redis_url: str, store: Store) -> None:
    """Whoever hears the agent's notice publishes it, the node's primary or not."""
    async with other_member(store, "s2"), fleet(store) as agents, sentinel(redis_url, sentinel={"id": "s1"}):
        await until(lambda: all(agent.pings > 5 for agent in agents.values()))
        for name, agent in agents.items():
            agent.report.phase, agent.report.ready = pb.PHASE_DOWN, False
            agent.notify(pb.NOTICE_KIND_ENGINE_DOWN, "process_exit", "pidfd")
            await until_state(store, NodeState.DEAD, name)
            (verdict,) = await read_events(store, Kind.NODE_DEAD, name)
            assert verdict.fields["cause"] == "process_exit"


async def test_each_node_has_one_sentinel_that_writes_and_another_that_watches(redis_url: str, store: Store) -> None:
    """Of three, two watch each node."""
    async with fleet(store) as agents, contextlib.AsyncExitStack() as stack:
        for name in ("s1", "s2", "s3"):
            await stack.enter_async_context(sentinel(redis_url, sentinel={"id": name}))
        for name in NODES:
            await until_state(store, NodeState.ALIVE, name)
        writers = await until(lambda: primaries(store), lambda found: all(len(names) == 1 for names in found.values()))
        await until(lambda: all(agent.open == 2 for agent in agents.values()))
        assert await read_events(store, Kind.NODE_DEAD) == []
    assert len(set.union(*writers.values())) > 1


async def test_the_share_of_a_killed_sentinel_goes_to_the_others_and_a_death_thereafter_is_found(
    redis_url: str, store: Store
) -> None:
    """SIGKILL of a sentinel process. What it watched is written by the survivor, and judged by it alone."""
    async with fleet(store) as agents:
        process = await start(UNBROKEN_REDIS__URL=redis_url, UNBROKEN_SENTINEL__ID="s2")
        try:
            async with sentinel(redis_url, sentinel={"id": "s1"}):
                shared = await until(
                    lambda: primaries(store),
                    lambda found: (
                        all(len(names) == 1 for names in found.values()) and len(set.union(*found.values())) == 2
                    ),
                )
                orphans = [name for name, writers in shared.items() if writers == {"s2"}]
                # When
                process.kill()
                killed = time.monotonic()
                await until(lambda: members(store), lambda living: living == {"s1"})
                gone_s = time.monotonic() - killed
                written = await until(
                    lambda: primaries(store), lambda found: all(names == {"s1"} for names in found.values())
                )
                # Then
                assert set(orphans) <= set(written)
                await agents[orphans[0]].stop()
                await until_state(store, NodeState.DEAD, orphans[0])
                (verdict,) = await read_events(store, Kind.NODE_DEAD, orphans[0])
                others = [await read_events(store, Kind.NODE_DEAD, name) for name in NODES if name != orphans[0]]
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.communicate()
    assert gone_s < 4.0, "1.5 s is the rule, plus what a busy machine adds"
    assert (verdict.fields["cause"], verdict.fields["sentinel"]) == ("link", "s1")
    assert others == [[]] * 5


async def test_a_sentinel_that_stops_in_good_order_is_gone_at_once(redis_url: str, store: Store) -> None:
    """Nobody waits for its membership to lapse."""
    async with sentinel(redis_url, sentinel={"id": "s1"}):
        async with sentinel(redis_url, sentinel={"id": "s2"}):
            await until(lambda: members(store), lambda living: living == {"s1", "s2"})
        assert await members(store) == {"s1"}


async def test_probation_goes_on_where_the_last_primary_left_it(redis_url: str, store: Store) -> None:
    """Neither from the start, nor past what was proven: its weight only grows."""
    slowly = {"hold_s": 0.3, "step": 0.02, "step_interval_s": 0.2}
    often = {"interval_s": (0.2, 0.3)}
    async with fake_llamacpp() as engine, fake_agent("a") as agent:
        agent.report.engine_url = engine.url
        await agent.join(store)
        epoch = await leases.fence(store, "a", 1, "job-1")
        agent.report.epoch = epoch
        await agent.join(store, NodeState.PROBATION)
        async with contextlib.AsyncExitStack() as stack:
            running = {name: await stack.enter_async_context(contextlib.AsyncExitStack()) for name in ("s1", "s2")}
            for name, own in running.items():
                await own.enter_async_context(sentinel(redis_url, sentinel={"id": name}, probation=slowly, probe=often))
            await until(lambda: registry.get(store, "a"), lambda node: node.weight >= 0.2)
            first = (await read_events(store, Kind.NODE_STATE))[-1].fields["by"]
            await running[first].aclose()
            await until(lambda: registry.get(store, "a"), lambda node: node.weight >= 0.5)
            steps = [
                event for event in await read_events(store, Kind.NODE_STATE) if event.fields["state"] == "PROBATION"
            ]
    weights = [float(event.fields["weight"]) for event in steps]
    assert weights == sorted(weights)
    assert {event.fields["by"] for event in steps} == {"s1", "s2"}


async def test_a_sentinel_that_sees_no_node_leaves_the_others_to_judge_until_it_sees_again(
    redis_url: str, store: Store
) -> None:
    """Nobody waits for its vote, and it writes nothing about nodes it cannot see."""
    async with other_member(store, "s2"), fleet(store) as agents, sentinel(redis_url, sentinel={"id": "s1"}):
        await until(lambda: all(agent.pings > 5 for agent in agents.values()))
        for agent in agents.values():
            agent.silent = True
        await until(lambda: members(store), lambda living: living == {"s2"})
        assert [await read_events(store, Kind.NODE_DEAD, name) for name in NODES] == [[]] * 6
        for agent in agents.values():
            agent.silent = False
        await until(lambda: members(store), lambda living: living == {"s1", "s2"})
        await asyncio.sleep(1.0)
        assert [await read_events(store, Kind.NODE_DEAD, name) for name in NODES] == [[]] * 6
