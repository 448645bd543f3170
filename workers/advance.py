"""The driver of a job: takes a step's lease, does its work while keeping the lease, writes the outcome, goes on.

The record decides everything; a message that comes twice, late or never changes nothing but time.
"""

import asyncio
import os
import socket
import time
import uuid
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import structlog

from recovery import events, jobs, limits
from recovery.errors import OperatorNeeded, StaleEpoch, StepFailed, StepLost, StoreUnavailable, UnknownJob
from recovery.jobs import Job, JobState, StepPlan
from recovery.stopping import stop_tasks
from workers import ending
from workers.context import TAKEOVERS, Context, Skip, Wait
from workers.nudge import Nudger
from workers.steps import WORK, fence

log = structlog.get_logger()

_INLINE_PAUSE_S = 1.0
"""Longer pauses are left to the reconciler: a worker that sleeps works for nobody."""
_INLINE_TRIES = 6
_PAUSE_S = (0.1, 0.3, 0.9, 2.0, 5.0)
"""Pause after the first, second, … failed attempt of a step; the last one from then on."""
_LEAST_S = 5.0
"""Time every attempt gets, however late it comes: only the reconciler declares a deadline missed."""

_END_TRIES = 40
_END_PAUSE_S = 0.25

Result = Literal["done", "failed", "again", "later"]


@dataclass(slots=True)
class Driver:
    """Drives jobs in one process."""

    context: Context
    nudger: Nudger
    _background: set[asyncio.Task[Any]] = field(default_factory=set)

    async def drive(self, job_id: str, step_name: str) -> dict[str, str]:
        """Run a step, then what became ready: short steps here, the others by message.

        Returns step → result. Never raises for a Redis that is away: the reconciler comes back to it.
        """
        results: dict[str, str] = {}
        todo = [step_name]
        # What nobody waits for (telling the agent, announcing) runs when the requests have moved.
        later: list[Coroutine[Any, Any, None]] = []
        try:
            while todo:
                name = todo.pop(0)
                job = await jobs.get(self.context.store, job_id)
                result = await self._persist(job, next(plan for plan in job.plan if plan.name == name), later.append)
                results[name] = result
                if result in ("done", "failed"):
                    todo += await self._advance(job_id, name)
        except UnknownJob:
            log.warning("job.unknown", job=job_id)
        except StoreUnavailable as error:
            log.warning("job.store_away", job=job_id, step=step_name, error=str(error))
        finally:
            for work in later:
                self._spawn(work)
            await self._finish_background()
        return results

    async def _persist(self, job: Job, plan: StepPlan, later: Callable[[Coroutine[Any, Any, None]], None]) -> Result:
        result: Result = "again"
        for _ in range(_INLINE_TRIES):
            result, pause_s = await run_step(self.context, job, plan, later)
            if result != "again" or pause_s > _INLINE_PAUSE_S:
                break
            await asyncio.sleep(pause_s)
            job = await jobs.get(self.context.store, job.id)
        return result

    async def _advance(self, job_id: str, done: str) -> list[str]:
        """Of the steps that waited for `done`, send those for elsewhere and return those to run here."""
        job = await jobs.get(self.context.store, job_id)
        if await ending.settle(self.context.store, job):
            return []
        here: list[str] = []
        for plan in job.ready(int(time.time() * 1_000)):
            if done not in plan.needs:
                continue
            if plan.queue == "recovery.fast" and not here:
                here.append(plan.name)
            else:
                # Sent while the step here runs: neither waits for the other.
                self._spawn(self.nudger.send(job, plan))
        # Not only started but under way before the work here takes the loop.
        await asyncio.sleep(0)
        return here

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _finish_background(self) -> None:
        pending = set(self._background)
        if pending:
            _, late = await asyncio.wait(pending, timeout=3.0)
            await stop_tasks(*late)


async def run_step(
    context: Context, job: Job, plan: StepPlan, later: Callable[[Coroutine[Any, Any, None]], None]
) -> tuple[Result, float]:
    """Make one attempt at a step, if it may be made; return its result and the pause before the next, s.

    `later` is given what should run once the requests have moved.
    ``done`` it is over, ``failed`` the job must end, ``again`` after the pause, ``later`` it is not ours now.
    """
    # The attempt's lease must be told apart from every other call's, even of this process.
    holder = f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
    verdict, attempt = await jobs.begin_step(context.store, job, plan, holder)
    if verdict != "begun":
        return {"done": "done", "spent": "failed", "closed": "failed"}.get(verdict, "later"), 0.0  # type: ignore[return-value]
    record = job.steps[plan.name]
    began = record.began_ms / 1_000 or time.time()
    within_s = max(began + plan.deadline_s - time.time(), _LEAST_S)
    bound = log.bind(job=job.id, node=job.node, epoch=job.epoch, step=plan.name, attempt=attempt)
    bound.info("step.begun")
    end = _Ending(context, job, plan, attempt)
    started = time.monotonic()
    timer = asyncio.timeout(within_s)
    try:
        async with timer:
            outcome = await _under_lease(context, job, plan, attempt, holder)
        result = await end.write("succeeded", outcome)
        if plan.name == "fence":
            later(fence.tell_agent(context, job.node, outcome, job.id))
            if job.state is JobState.QUEUED:
                later(_announce_running(context, job))
    except Skip as reason:
        result = await end.write("skipped", error=str(reason))
    except Wait as wait:
        result = await end.give_back(wait)
    except OperatorNeeded as error:
        result = await end.write("failed", {"operator": True}, str(error))
    except (StepFailed, StaleEpoch) as error:
        result = await end.write("failed", error=str(error))
    except StepLost:
        bound.warning("step.lost")
        await _return_permit(context, job.id)
        return "later", 0.0
    except StoreUnavailable as error:
        result = await end.give_back(Wait(str(error), 0.2))
    except Exception as error:  # noqa: BLE001 - whatever a step meets is written down and tried again
        if timer.expired():
            return await end.write("failed", error=f"not done within its deadline of {plan.deadline_s:g} s")
        bound.warning("step.error", error=repr(error))
        result = await end.try_again(str(error) or repr(error))
    bound.info("step.ended", result=result[0], took_ms=round((time.monotonic() - started) * 1_000, 1))
    return result


@dataclass(frozen=True, slots=True)
class _Ending:
    """Writes how an attempt ended."""

    context: Context
    job: Job
    plan: StepPlan
    attempt: int

    async def write(
        self,
        state: Literal["succeeded", "skipped", "failed"],
        outcome: dict[str, Any] | None = None,
        error: str = "",
    ) -> tuple[Result, float]:
        if not await self._end(state, outcome or {}, error):
            return "later", 0.0
        return ("failed" if state == "failed" else "done"), 0.0

    async def give_back(self, wait: Wait) -> tuple[Result, float]:
        return await self._pending(str(wait), wait.pause_s, give_back=True, restart_clock=wait.restart_clock)

    async def try_again(self, error: str) -> tuple[Result, float]:
        if self.attempt >= self.plan.tries:
            return await self.write("failed", error=error)
        return await self._pending(error, _PAUSE_S[min(self.attempt, len(_PAUSE_S)) - 1])

    async def _pending(self, error: str, pause_s: float, **how: bool) -> tuple[Result, float]:
        if not await self._end("pending", {}, error, pause_ms=int(pause_s * 1_000), **how):
            return "later", 0.0
        # A step that waits frees its worker; the reconciler comes back to it.
        return ("later" if how.get("give_back") else "again"), pause_s + 0.01

    async def _end(
        self,
        state: Literal["succeeded", "skipped", "failed", "pending"],
        outcome: dict[str, Any],
        error: str,
        **how: Any,
    ) -> bool:
        """Write the end, patiently: work that is done must not be done again because Redis blinked."""
        store, job, step = self.context.store, self.job.id, self.plan.name
        for patience in range(_END_TRIES, -1, -1):
            try:
                await jobs.end_step(store, job, step, self.attempt, state, outcome, error, **how)
            except StepLost:
                return False
            except StoreUnavailable:
                if not patience:
                    raise
                await asyncio.sleep(_END_PAUSE_S)
            else:
                return True
        return False


async def _under_lease(context: Context, job: Job, plan: StepPlan, attempt: int, holder: str) -> dict[str, Any]:
    """Do the step's work while its lease is kept; cancel the work when the lease is lost."""
    work = asyncio.create_task(WORK[plan.name](replace(context, attempt=attempt), job))
    keeper = asyncio.create_task(_keep(context, job, plan, attempt, holder))
    try:
        await asyncio.wait({work, keeper}, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            keeper.result()  # raises why it ended
        return await work
    finally:
        await stop_tasks(work, keeper)


async def _keep(context: Context, job: Job, plan: StepPlan, attempt: int, holder: str) -> None:
    while True:
        await asyncio.sleep(plan.lease_ms / 3_000)
        try:
            await jobs.prolong_step(context.store, job.id, plan, attempt, holder)
        except StoreUnavailable:
            continue  # while Redis is away nobody else can take over either


async def _return_permit(context: Context, job_id: str) -> None:
    """Return the permit of a job that was ended from outside, so that nobody waits until it lapses."""
    try:
        if (await jobs.get(context.store, job_id)).state not in jobs.LIVE:
            await limits.give_back(context.store, TAKEOVERS, job_id)
    except (StoreUnavailable, UnknownJob) as error:
        log.info("job.permit_lapses", job=job_id, error=str(error))


async def _announce_running(context: Context, job: Job) -> None:
    try:
        await events.publish(
            context.store,
            events.Kind.JOB_STATE,
            {"job": job.id, "node": job.node, "epoch": job.epoch, "state": JobState.RUNNING.value},
        )
    except StoreUnavailable as error:
        log.info("job.not_announced", job=job.id, error=str(error))
