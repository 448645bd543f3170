"""Ending tasks for certain: redis-py swallows a cancel that hits it while it checks a connection out.

A task that is cancelled once may thus go on for ever; these helpers ask again until it has ended.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import structlog

log = structlog.get_logger()

T = TypeVar("T")

_ROUNDS = 20
_ROUND_S = 0.25


async def stop_tasks(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks until they have ended, for 5 s at most; their results and errors are dropped.

    A caller that is itself cancelled meanwhile still ends them, and is cancelled then.
    """
    pending = {task for task in tasks if not task.done()}
    cancelled = False
    for _ in range(_ROUNDS):
        if not pending:
            break
        for task in pending:
            task.cancel()
        try:
            await asyncio.wait(pending, timeout=_ROUND_S)
        except asyncio.CancelledError:
            # Whoever ends us asks again, too: to go now would leave the tasks without an owner.
            cancelled = True
        pending = {task for task in pending if not task.done()}
    for task in pending:
        log.error("task.does_not_stop", task=repr(task))
    for task in tasks:
        if task.done() and not task.cancelled():
            task.exception()  # seen
    if cancelled:
        raise asyncio.CancelledError


async def within(seconds: float, work: Coroutine[Any, Any, T]) -> T:
    """Await `work` for so long at most. Raises TimeoutError; the work is stopped then."""
    task = asyncio.create_task(work)
    try:
        done, _ = await asyncio.wait({task}, timeout=seconds)
        if not done:
            raise TimeoutError(f"no answer within {seconds:g} s")
        return task.result()
    finally:
        await stop_tasks(task)
