"""Messages to Celery: "look at this step of this job". Truth is the job record; a lost nudge costs a second.

Publishing blocks, so it runs in threads of its own, a bounded number of messages at once.
"""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import structlog
from celery import Celery

from recovery.jobs import Job, StepPlan

log = structlog.get_logger()

_THREADS = 2
_IN_FLIGHT = 64
_EXPIRES_S = 60
"""An older message says nothing that the reconciler has not said again."""
_RETRY = {"max_retries": 2, "interval_start": 0, "interval_step": 0.05, "interval_max": 0.1}


class Nudger:
    """Sends steps to their queues. Made after any fork; closed by its owner."""

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="nudge")
        self._in_flight: set[tuple[str, str]] = set()

    async def send(self, job: Job, step: StepPlan) -> None:
        """Send a message for a step, unless one is just being sent. A failure is logged and left to the reconciler."""
        key = (job.id, step.name)
        if key in self._in_flight or len(self._in_flight) >= _IN_FLIGHT:
            return
        self._in_flight.add(key)
        future = asyncio.get_running_loop().run_in_executor(self._threads, self._publish, job, step)
        future.add_done_callback(lambda _: self._in_flight.discard(key))
        try:
            await asyncio.shield(future)
        except self._app.connection_for_write().connection_errors as error:
            log.warning("nudge.failed", job=job.id, node=job.node, step=step.name, error=str(error))
        except Exception as error:  # noqa: BLE001 - kombu wraps what a broker may raise in many ways
            log.warning("nudge.failed", job=job.id, node=job.node, step=step.name, error=repr(error))

    async def warm(self) -> None:
        """Open the broker connection ahead of the first death, which should not pay for it."""
        await asyncio.get_running_loop().run_in_executor(self._threads, self._connect)

    def close(self) -> None:
        """Stop the threads without waiting for a broker that does not answer."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _publish(self, job: Job, step: StepPlan) -> None:
        self._app.send_task(
            f"recovery.{step.name}",
            kwargs={"node": job.node, "epoch": job.epoch, "job": job.id},
            queue=step.queue,
            expires=_EXPIRES_S,
            ignore_result=True,
            retry=True,
            retry_policy=_RETRY,
        )

    def _connect(self) -> None:
        try:
            with self._app.producer_pool.acquire(block=True, timeout=1) as producer:
                connection: Any = producer.connection
                connection.ensure_connection(max_retries=1, interval_start=0)
        except Exception as error:  # noqa: BLE001 - a broker that is away now may be there at the first death
            log.warning("nudge.broker_away", error=repr(error))
