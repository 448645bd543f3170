"""Tasks that swallow a cancel are ended all the same."""

import asyncio

import pytest

from recovery.stopping import stop_tasks, within


async def stubborn(swallow: int) -> None:
    """Swallow that many cancels, as redis-py does at a connection's checkout."""
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            if swallow == 0:
                raise
            swallow -= 1


async def test_a_task_that_swallows_a_cancel_is_asked_again() -> None:
    """Until it has ended; one that had failed before is no trouble."""

    async def fail() -> None:
        raise ValueError

    tasks = [asyncio.create_task(stubborn(2)), asyncio.create_task(stubborn(0)), asyncio.create_task(fail())]
    await asyncio.sleep(0)
    async with asyncio.timeout(5):
        await stop_tasks(*tasks)
    assert [task.done() for task in tasks] == [True] * 3


async def test_work_past_its_time_is_stopped_and_said_to_be() -> None:
    """Whether or not it swallows the first cancel."""
    with pytest.raises(TimeoutError):
        await within(0.01, stubborn(1))
    assert await within(5, asyncio.sleep(0, "answer")) == "answer"


async def test_errors_of_the_work_come_through() -> None:
    """As they were raised."""

    async def fail() -> None:
        raise ValueError("boom")

    with pytest.raises(ValueError, match="boom"):
        await within(5, fail())
