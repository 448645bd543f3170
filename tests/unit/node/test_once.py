"""Commands run once and one after another."""

import asyncio

import pytest

from node.once import Once


async def test_the_same_command_joins_the_one_under_way() -> None:
    """Two callers, one run, one result."""
    once, runs, go = Once(), 0, asyncio.Event()

    async def work() -> int:
        nonlocal runs
        runs += 1
        await go.wait()
        return runs

    callers = [asyncio.create_task(once.run(("start", 8), work)) for _ in range(3)]
    await asyncio.sleep(0)
    go.set()

    assert await asyncio.gather(*callers) == [1, 1, 1]


async def test_a_caller_that_leaves_does_not_stop_the_work() -> None:
    """A worker that dies in mid-command finds the work done when it asks again."""
    once, go, done = Once(), asyncio.Event(), asyncio.Event()

    async def work() -> None:
        await go.wait()
        done.set()

    caller = asyncio.create_task(once.run("start", work))
    await asyncio.sleep(0)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    go.set()

    await asyncio.wait_for(done.wait(), 5)


async def test_different_commands_never_run_at_the_same_time() -> None:
    """A start never overlaps the reclaim before it."""
    once, inside, most = Once(), 0, 0

    async def work() -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await asyncio.sleep(0)
        inside -= 1

    await asyncio.gather(*(once.run(key, work) for key in range(5)))

    assert most == 1


async def test_a_failed_command_may_be_tried_again() -> None:
    """A failure is told to its callers and then forgotten."""
    once = Once()

    async def fail() -> None:
        raise ValueError("no")

    async def succeed() -> str:
        return "yes"

    with pytest.raises(ValueError, match="no"):
        await once.run("x", fail)

    assert await once.run("x", succeed) == "yes"


async def test_closing_ends_what_is_under_way() -> None:
    """The stop leaves no task behind."""
    once, started = Once(), asyncio.Event()

    async def work() -> None:
        started.set()
        await asyncio.Event().wait()

    caller = asyncio.create_task(once.run("x", work))
    await started.wait()
    await once.close()

    with pytest.raises(asyncio.CancelledError):
        await caller
