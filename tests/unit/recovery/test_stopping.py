"""Whoever is ended while it ends its own tasks ends them first."""

import asyncio

from recovery.stopping import stop_tasks


async def stubborn(cancels: int) -> None:
    """Lose some cancels, as redis-py's pool does."""
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancels -= 1
            if cancels < 0:
                raise


async def started(cancels: int) -> asyncio.Task[None]:
    """Run a stubborn task up to its wait."""
    task = asyncio.create_task(stubborn(cancels))
    await asyncio.sleep(0)
    return task


async def test_an_owner_that_is_cancelled_while_it_ends_its_tasks_still_ends_them() -> None:
    """Nobody else would; then it is cancelled itself."""
    task = await started(3)

    async def own() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await stop_tasks(task)

    owner = asyncio.create_task(own())
    await asyncio.sleep(0)
    await stop_tasks(owner)
    assert task.cancelled()
    assert owner.cancelled()
