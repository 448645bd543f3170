"""Limits that hold across the whole installation: semaphores with lapsing permits, and budgets over a period."""

from recovery.store import PREFIX, Store, available


def _key(name: str) -> str:
    return f"{PREFIX}limits:{{{name}}}"


async def take(store: Store, name: str, holder: str, limit: int, permit_ms: int) -> bool:
    """Take or prolong one of `limit` permits for `permit_ms`; False when all are in use."""
    return bool(await store.run("semaphore_take", [_key(name)], [holder, limit, permit_ms]))


async def prolong(store: Store, name: str, holder: str, permit_ms: int) -> bool:
    """Prolong a permit still held; never takes a new one. False when it lapsed or was returned."""
    return bool(await store.run("semaphore_take", [_key(name)], [holder, 0, permit_ms]))


async def give_back(store: Store, name: str, holder: str) -> None:
    """Return a permit; returning one twice is harmless."""
    with available():
        await store.redis.zrem(_key(name), holder)


async def spend(store: Store, name: str, try_id: str, limit: int, period_s: float) -> bool:
    """Spend one try of a sliding budget, counted once per `try_id`; False when it is used up."""
    return bool(await store.run("budget_spend", [_key(name)], [try_id, limit, int(period_s * 1_000)]))


async def clear(store: Store, name: str) -> None:
    """Forget what a budget has spent: somebody took responsibility for the next tries."""
    with available():
        await store.redis.delete(_key(name))
