"""Semaphores and budgets on a real server."""

import asyncio

from recovery import limits
from recovery.store import Store
from tests.rigs.workers import until


async def test_of_many_takers_only_as_many_as_allowed_get_a_permit(store: Store) -> None:
    """At once, from many callers."""
    taken = await asyncio.gather(*(limits.take(store, "t", f"h{number}", 3, 5_000) for number in range(20)))
    assert sum(taken) == 3


async def test_a_permit_is_kept_by_its_holder_and_free_after_it_is_returned(store: Store) -> None:
    """Taking again prolongs; returning twice is harmless."""
    assert await limits.take(store, "t", "a", 1, 5_000)
    assert await limits.take(store, "t", "a", 1, 5_000)
    assert not await limits.take(store, "t", "b", 1, 5_000)
    await limits.give_back(store, "t", "b")
    assert not await limits.take(store, "t", "b", 1, 5_000)
    for _ in range(2):
        await limits.give_back(store, "t", "a")
    assert await limits.take(store, "t", "b", 1, 5_000)


async def test_the_permit_of_a_dead_holder_lapses(store: Store) -> None:
    """Nobody has to return it."""
    await limits.take(store, "t", "dead", 1, 100)
    await until(lambda: limits.take(store, "t", "b", 1, 5_000), "the permit lapsed")


async def test_prolonging_never_takes_a_permit(store: Store) -> None:
    """Else a reconciler could hold what a job has just returned."""
    assert not await limits.prolong(store, "t", "a", 5_000)
    await limits.take(store, "t", "a", 1, 300)
    assert await limits.prolong(store, "t", "a", 60_000)
    await asyncio.sleep(0.35)
    assert not await limits.take(store, "t", "b", 1, 5_000)
    await limits.give_back(store, "t", "a")
    assert not await limits.prolong(store, "t", "a", 5_000)


async def test_a_budget_counts_each_try_once_and_refuses_the_next(store: Store) -> None:
    """A try that is repeated after a lost worker costs nothing."""
    assert [await limits.spend(store, "b", "t1", 2, 60.0) for _ in range(3)] == [True] * 3
    assert await limits.spend(store, "b", "t2", 2, 60.0)
    assert not await limits.spend(store, "b", "t3", 2, 60.0)
    assert await limits.spend(store, "b", "t2", 2, 60.0)


async def test_a_budget_refills_as_its_period_slides_and_when_it_is_cleared(store: Store) -> None:
    """Old tries are forgotten."""
    assert await limits.spend(store, "b", "t1", 1, 0.3)
    assert not await limits.spend(store, "b", "t2", 1, 60.0)
    await until(lambda: limits.spend(store, "b", "t2", 1, 0.3), "the period slid on")
    assert await limits.spend(store, "c", "t1", 1, 60.0)
    await limits.clear(store, "c")
    assert await limits.spend(store, "c", "t2", 1, 60.0)
