"""One event loop for the life of a worker process, and what lives on it: store, channels, nudger.

Celery's tasks are synchronous; each hands its coroutine to this loop and waits.
"""

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any

from celery import Celery

from recovery.auth import read_token
from recovery.config import Settings
from recovery.store import connect
from workers.advance import Driver
from workers.context import Context
from workers.nudge import Nudger

_STOP_S = 3.0


class Runtime:
    """A thread with an event loop and a driver on it. Made after the fork, closed at the process's end."""

    def __init__(self, settings: Settings, app: Celery) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="runtime", daemon=True)
        self._store = connect(settings.redis)
        self._nudger = Nudger(app)
        context = Context(settings, self._store, read_token(settings.auth.agent_token_file))
        self.driver = Driver(context, self._nudger)
        self._thread.start()
        # In the background: Celery gives a new child four seconds to come up.
        self._warming = asyncio.run_coroutine_threadsafe(self._nudger.warm(), self._loop)

    def run(self, work: Coroutine[Any, Any, dict[str, str]], timeout_s: float) -> dict[str, str]:
        """Run a coroutine on the loop and wait; it is cancelled when the waiting ends early."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(timeout_s)
        finally:
            future.cancel()

    def close(self) -> None:
        """Close everything and end the thread."""
        self._nudger.close()
        try:
            asyncio.run_coroutine_threadsafe(self._store.aclose(), self._loop).result(_STOP_S)
        except TimeoutError:
            pass  # the process ends anyway
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(_STOP_S)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()
