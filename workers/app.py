"""The Celery application: its settings, its tasks (one per step, named for Flower) and how to start its processes.

Celery carries messages; what they mean stands in the job record (design, section 10).
"""

import os
import signal
import sys
import threading
from typing import Any

import structlog
from celery import Celery
from celery.signals import (
    setup_logging,
    worker_process_init,
    worker_process_shutdown,
    worker_ready,
    worker_shutting_down,
)

from recovery import config, jobs
from recovery import log as logs
from recovery.config import Settings
from workers.runtime import Runtime

log = structlog.get_logger()

_KEY_PREFIX = "unbroken:celery:"
_NO_REDIS = "redis://127.0.0.1:6379/0"
"""Only so that the module can be imported; a worker refuses to start with it."""
_VISIBILITY_S = 60
"""A message unacknowledged for this long is delivered again. Harmless: the step's lease refuses the second."""
_TASK_LIMIT_S = 960
"""Above every step's deadline: the last bound if all others fail."""

_STOP_S = 8.0
"""From the order to stop to the end, at most; running steps get the first 3 s (`worker_soft_shutdown_timeout`)."""

TASKS = tuple(dict.fromkeys(plan.name for plans in jobs.PLANS.values() for plan in plans))
"""Steps that have a task, `recovery.<step>`."""


def create_app(settings: Settings) -> Celery:
    """Return the application for these settings."""
    app = Celery("unbroken")
    transport = {
        "global_keyprefix": _KEY_PREFIX,
        "visibility_timeout": _VISIBILITY_S,
        # A visibility timeout alone does nothing: kombu looks only each 10 × 10 s unless told so.
        "unacked_restore_interval": 1,
        "unacked_restore_throttle": 1,
        "socket_keepalive": True,
        "socket_connect_timeout": 2,
        "health_check_interval": 5,
    }
    app.conf.update(
        broker_url=settings.redis.url or _NO_REDIS,
        result_backend=settings.redis.url or _NO_REDIS,
        broker_transport_options=transport,
        result_backend_transport_options={"global_keyprefix": _KEY_PREFIX},
        redis_socket_keepalive=True,
        redis_backend_health_check_interval=5,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        broker_connection_timeout=2,
        # Flower asks every worker a dozen things at once, each over two connections, and hangs when they run out.
        broker_pool_limit=48,
        task_serializer="json",
        result_serializer="json",
        accept_content=["json"],
        result_accept_content=["json"],
        task_ignore_result=True,
        result_extended=False,
        task_acks_late=True,
        task_reject_on_worker_lost=True,
        task_time_limit=_TASK_LIMIT_S,
        task_default_queue="recovery.slow",
        task_create_missing_queues=True,
        task_routes={f"recovery.{plan.name}": {"queue": plan.queue} for plan in jobs.RECOVER},
        worker_prefetch_multiplier=1,
        worker_soft_shutdown_timeout=3,
        worker_send_task_events=True,
        task_send_sent_event=True,
        worker_redirect_stdouts=False,
        worker_cancel_long_running_tasks_on_connection_loss=False,
        timezone="UTC",
        enable_utc=True,
    )
    return app


def worker_argv(queue: str, concurrency: int, name: str) -> list[str]:
    """Return the command line of a worker process set for ``fast`` or ``slow`` (with `worker_env` as environment)."""
    return [
        sys.executable, "-m", "celery", "-A", "workers.app", "--quiet", "worker",
        "--queues", f"recovery.{queue.removeprefix('recovery.')}", "--concurrency", str(concurrency),
        "--hostname", f"{name}@%h", "--task-events", "--without-gossip", "--without-mingle", "--pool", "prefork",
    ]  # fmt: skip


def worker_env() -> dict[str, str]:
    """Return what a worker's environment needs beside the settings: TERM lets running steps end, then stops."""
    return {"REMAP_SIGTERM": "SIGQUIT", "GRPC_VERBOSITY": "ERROR"}


def flower_argv(host: str, port: int) -> list[str]:
    """Return Flower's command line (with `flower_env` as environment)."""
    return [
        sys.executable, "-m", "celery", "-A", "workers.app", "flower",
        f"--address={host}", f"--port={port}", "--persistent=False", "--max_tasks=10000",
    ]  # fmt: skip


def flower_env(host: str) -> dict[str, str]:
    """Return Flower's extra environment: its API is open on loopback only, elsewhere it wants authentication."""
    return {"FLOWER_UNAUTHENTICATED_API": "true" if host in ("127.0.0.1", "::1", "localhost") else "false"}


settings = config.load()
app = create_app(settings)
_runtime: Runtime | None = None


def _define(step: str) -> None:
    @app.task(name=f"recovery.{step}", shared=False)
    def run(node: str, epoch: int, job: str) -> dict[str, str]:
        if _runtime is None:
            raise RuntimeError("the worker process was not set up")
        structlog.contextvars.bind_contextvars(node=node, epoch=epoch, job=job)
        try:
            return _runtime.run(_runtime.driver.drive(job, step), _TASK_LIMIT_S)
        finally:
            structlog.contextvars.unbind_contextvars("node", "epoch", "job")


for _step in TASKS:
    _define(_step)


@setup_logging.connect
def _configure_logging(**_: Any) -> None:
    # Celery's signal handlers write here first; once nobody reads it, that raises and the order to stop is lost.
    sys.__stdout__ = None  # type: ignore[misc]
    settings.redis.address()
    logs.configure(settings.log, process="worker")


@worker_ready.connect
def _say_ready(sender: Any = None, **_: Any) -> None:
    log.info("worker.ready", worker=str(getattr(sender, "hostname", "")), pid=os.getpid())


@worker_shutting_down.connect
def _stop_in_time(**_: Any) -> None:
    """Bound the stop: Celery says good-bye to its broker, and waits without end for one that is away."""
    watchdog = threading.Timer(_STOP_S, _stop_now)
    watchdog.daemon = True
    watchdog.start()


def _stop_now() -> None:
    log.warning("worker.stop_forced", after_s=_STOP_S)
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)  # its children as well: nobody else knows them
    os._exit(1)


@worker_process_init.connect
def _open_runtime(**_: Any) -> None:
    global _runtime
    _runtime = Runtime(settings, app)


@worker_process_shutdown.connect
def _close_runtime(**_: Any) -> None:
    if _runtime is not None:
        _runtime.close()
