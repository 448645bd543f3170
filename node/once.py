"""Commands run once: the same command joins the one under way, others wait their turn.

A caller that goes away does not cancel the work: a half-done start would help nobody.
"""

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, TypeVar

from recovery.stopping import stop_tasks

T = TypeVar("T")


class Once:
    """The commands under way."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._tasks: dict[Hashable, asyncio.Task[Any]] = {}

    async def run(self, key: Hashable, work: Callable[[], Awaitable[T]]) -> T:
        """Run `work` after all others, or join the task that runs under `key` already."""
        task = self._tasks.get(key)
        if task is None:
            task = asyncio.create_task(self._serially(work), name=f"command {key}")
            self._tasks[key] = task
            task.add_done_callback(lambda done: self._finished(key, done))
        result: T = await asyncio.shield(task)
        return result

    async def close(self) -> None:
        """Cancel what is under way and wait for its end."""
        await stop_tasks(*self._tasks.values())

    async def _serially(self, work: Callable[[], Awaitable[T]]) -> T:
        async with self._lock:
            return await work()

    def _finished(self, key: Hashable, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(key, None)
        if not task.cancelled():
            task.exception()  # seen: the caller may be gone
