"""Epochs and leases on a real server: an epoch never goes backwards, a lease has one holder."""

import asyncio

import pytest

from recovery import leases, registry
from recovery.errors import LeaseHeld, StaleEpoch
from recovery.registry import NodeState
from recovery.store import Store
from tests.rigs.valkey import Valkey
from tests.rigs.workers import until


async def boot(store: Store, holder: str = "h", floor: int = 0, running: int = 0, ms: int = 5_000) -> leases.Boot:
    """Boot node a's agent."""
    return await leases.boot(store, "a", holder, floor, running, ms)


async def test_each_start_of_an_agent_without_an_engine_gets_a_new_epoch(store: Store) -> None:
    """From 1 on, by one."""
    assert [(await boot(store)).epoch for _ in range(3)] == [1, 2, 3]


async def test_a_lease_held_by_another_agent_is_refused_until_it_lapses(store: Store) -> None:
    """Two agents of one node must never both start an engine."""
    await boot(store, "first", ms=200)
    with pytest.raises(LeaseHeld, match="first"):
        await boot(store, "second")

    async def lapsed() -> bool:
        return await leases.remaining_ms(store, "a") <= 0

    await until(lapsed, "the lease lapsed")
    assert (await boot(store, "second")).verdict == "start"


async def test_an_engine_that_still_runs_under_the_current_epoch_is_adopted(store: Store) -> None:
    """An agent's restart alone costs no engine."""
    first = await boot(store)
    assert await boot(store, floor=1, running=first.epoch) == leases.Boot("adopt", first.epoch)
    assert (await boot(store, floor=1, running=0)).verdict == "start"


async def test_an_engine_judged_dead_is_not_adopted(store: Store) -> None:
    """A verdict stands, whatever still runs."""
    first = await boot(store)
    await registry.set_state(store, "a", first.epoch, NodeState.DEAD)
    assert await boot(store, floor=1, running=first.epoch) == leases.Boot("start", first.epoch + 1)


async def test_an_agent_that_starts_during_a_recovery_waits_for_its_commands(store: Store) -> None:
    """Fenced, under the job's epoch, until the node is back."""
    first = await boot(store)
    fenced = await leases.fence(store, "a", first.epoch, "job")
    assert await boot(store) == leases.Boot("fenced", fenced)
    await registry.set_state(store, "a", fenced, NodeState.QUARANTINED)
    assert (await boot(store)).verdict == "fenced"
    await registry.set_state(store, "a", fenced, NodeState.PROBATION)
    assert await boot(store) == leases.Boot("start", fenced + 1)


async def test_an_emptied_redis_learns_the_epoch_from_the_agents_floor(store: Store) -> None:
    """What the agent has on disk is the least the next epoch may follow."""
    assert await boot(store, floor=41) == leases.Boot("start", 42)
    await store.redis.flushall()
    assert await boot(store, floor=42, running=42) == leases.Boot("adopt", 42)


async def test_a_renewal_teaches_an_emptied_redis_the_epoch(store: Store) -> None:
    """No restart is needed for that."""
    epoch = (await boot(store, floor=6)).epoch
    await store.redis.flushall()
    await leases.renew(store, "a", "h", epoch, 5_000)
    assert await leases.current_epoch(store, "a") == epoch
    with pytest.raises(StaleEpoch):
        await leases.renew(store, "a", "h", epoch - 1, 5_000)


async def test_a_fence_of_an_epoch_that_redis_lost_still_raises_it(store: Store) -> None:
    """An epoch above what Redis knows proves that Redis lost writes, not that the caller is wrong."""
    assert await leases.fence(store, "a", 7, "job") == 8
    assert await leases.current_epoch(store, "a") == 8


async def test_a_fence_is_repeatable_for_its_job_and_refused_to_others(store: Store) -> None:
    """The same job gets the same new epoch; anybody else is stale."""
    epoch = (await boot(store)).epoch
    assert [await leases.fence(store, "a", epoch, "job") for _ in range(3)] == [epoch + 1] * 3
    with pytest.raises(StaleEpoch) as refused:
        await leases.fence(store, "a", epoch, "other")
    assert (refused.value.presented, refused.value.current) == (epoch, epoch + 1)


async def test_a_job_cannot_fence_again_once_the_node_moved_on(store: Store) -> None:
    """A late repetition of an old fence changes nothing."""
    epoch = (await boot(store)).epoch
    await leases.fence(store, "a", epoch, "job")
    await leases.fence(store, "a", epoch + 1, "next")
    with pytest.raises(StaleEpoch):
        await leases.fence(store, "a", epoch, "job")
    assert await leases.current_epoch(store, "a") == epoch + 2


async def test_of_many_jobs_that_fence_at_once_one_wins(store: Store) -> None:
    """The epoch grows by one."""
    epoch = (await boot(store)).epoch
    results = await asyncio.gather(
        *(leases.fence(store, "a", epoch, f"job{number}") for number in range(20)), return_exceptions=True
    )
    assert [result for result in results if isinstance(result, int)] == [epoch + 1]
    assert sum(isinstance(result, StaleEpoch) for result in results) == 19


async def test_a_fenced_epoch_can_neither_renew_nor_write(store: Store) -> None:
    """The zombie is refused at each sink, and its node takes no traffic."""
    epoch = (await boot(store)).epoch
    await registry.register(store, "a", epoch, {"state": "ALIVE", "weight": 1.0})
    await leases.fence(store, "a", epoch, "job")
    with pytest.raises(StaleEpoch):
        await leases.renew(store, "a", "h", epoch, 5_000)
    with pytest.raises(StaleEpoch):
        await registry.write(store, "a", epoch, {"weight": 1.0})
    node = await registry.get(store, "a")
    assert (node.state, node.weight, node.epoch) == (NodeState.RECOVERING, 0.0, epoch + 1)
    assert await leases.remaining_ms(store, "a") <= 0


async def test_a_lease_is_released_only_by_its_holder(store: Store) -> None:
    """An orderly stop lets the next agent in at once."""
    epoch = (await boot(store, "h")).epoch
    await leases.release(store, "a", "other", epoch)
    await leases.release(store, "a", "h", epoch - 1)
    assert await leases.remaining_ms(store, "a") > 0
    await leases.release(store, "a", "h", epoch)
    assert (await boot(store, "other")).verdict == "start"


async def test_the_epoch_survives_a_killed_server(own_valkey: Valkey) -> None:
    """It is in the append-only file."""
    store = Store(own_valkey.url)
    try:
        for _ in range(3):
            await boot(store)
        # The file is synced each second, but the page cache outlives the process.
        own_valkey.restart()
        assert await leases.current_epoch(store, "a") == 3
    finally:
        await store.aclose()
