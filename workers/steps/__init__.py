"""The steps of a recovery, by name: each takes (context, job), is idempotent and returns its outcome."""

from collections.abc import Callable, Coroutine
from typing import Any

from recovery.jobs import Job
from workers.context import Context
from workers.steps import fence, reclaim, requeue, restart, warm_up

WORK: dict[str, Callable[[Context, Job], Coroutine[Any, Any, dict[str, Any]]]] = {
    "fence": fence.run,
    "requeue": requeue.run,
    "reclaim": reclaim.run,
    "restart": restart.run,
    "warm_up": warm_up.run,
    "requeue_waiting": requeue.run_waiting,
}
"""Step → work; the order and needs of steps are data in `recovery.jobs`."""
