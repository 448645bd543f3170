"""What a watch has under way: the first part that breaks ends it, and nothing outlives it."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from recovery.stopping import stop_tasks


class Tasks:
    """Tasks of one owner. No TaskGroup: it cancels each once, and one that loses that one cancel would never end."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] | None = None
        self._broken: asyncio.Future[None] | None = None

    def open(self) -> None:
        """From now on tasks are started."""
        self._tasks, self._broken = set(), asyncio.get_running_loop().create_future()

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Start a task; before `open` and after `close` nothing is."""
        if self._tasks is None:
            work.close()
            return
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def broken(self, error: BaseException) -> None:
        """Have `wait` raise this."""
        if self._broken is not None and not self._broken.done():
            self._broken.set_exception(error)

    async def wait(self) -> None:
        """Wait until something breaks, and raise that."""
        if self._broken is not None:
            await self._broken

    async def close(self) -> None:
        """End all of them."""
        tasks, self._tasks = self._tasks, None
        if self._broken is not None:
            self._broken.cancel()
        await stop_tasks(*(tasks or ()))

    def _ended(self, task: asyncio.Task[None]) -> None:
        if self._tasks is not None:
            self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self.broken(error)
