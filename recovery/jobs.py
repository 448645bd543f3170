"""Recovery jobs: one durable record per (node, epoch), the only truth about a recovery (requirements E5).

Steps are data. Whoever holds a step's lease may do its work; everybody else is refused.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

import orjson

from recovery import events
from recovery.errors import StepLost, UnknownJob
from recovery.store import JOBS, LIVE_JOBS, Store, available, job_key

_KEEP_JOBS = 10_000
_KEEP_S = 30 * 86_400


class JobState(StrEnum):
    """How a job stands."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    NEEDS_OPERATOR = "needs_operator"


LIVE = frozenset({JobState.QUEUED, JobState.RUNNING})


@dataclass(frozen=True, slots=True)
class StepPlan:
    """A step as data."""

    name: str
    needs: tuple[str, ...]
    queue: Literal["recovery.fast", "recovery.slow"]
    deadline_s: float
    """From its first beginning to its success; past it the job fails with the step's last error."""
    tries: int
    """Attempts that really did something; waiting for a permit or an agent is given back."""
    lease_ms: int = 3_000
    """Time after which a worker that stopped prolonging counts as lost; `prolong_step` each third of it."""


RECOVER: tuple[StepPlan, ...] = (
    StepPlan("fence", (), "recovery.fast", 15.0, 20, 1_500),
    StepPlan("requeue", ("fence",), "recovery.fast", 30.0, 20, 1_500),
    StepPlan("reclaim", ("fence",), "recovery.slow", 90.0, 10),
    StepPlan("restart", ("reclaim",), "recovery.slow", 900.0, 3),
    StepPlan("warm_up", ("restart",), "recovery.slow", 900.0, 5),
    StepPlan("requeue_waiting", ("warm_up",), "recovery.fast", 90.0, 20, 1_500),
)
"""Fence, then move the requests at once, then bring the node back."""

PLANS: dict[str, tuple[StepPlan, ...]] = {"recover": RECOVER}
"""Action → steps, in the order they are shown."""


@dataclass(frozen=True, slots=True)
class Step:
    """A step's record in a job."""

    name: str
    state: Literal["pending", "running", "succeeded", "skipped", "failed"] = "pending"
    attempts: int = 0
    holder: str = ""
    lease_ms: int = 0
    began_ms: int = 0
    ended_ms: int = 0
    outcome: dict[str, Any] = field(default_factory=dict)
    error: str = ""

    @property
    def done(self) -> bool:
        """Whether what needs it may begin."""
        return self.state in ("succeeded", "skipped")


@dataclass(frozen=True, slots=True)
class Job:
    """A job's record."""

    id: str
    node: str
    epoch: int
    """The epoch that is fenced."""
    action: str
    state: JobState
    cause: str
    evidence: str
    started_by: str
    reason: str
    created_ms: int
    updated_ms: int
    ended_ms: int
    new_epoch: int
    """Epoch of the replacement, 0 before the fence."""
    error: str
    steps: dict[str, Step]

    @property
    def plan(self) -> tuple[StepPlan, ...]:
        """The steps its action consists of."""
        return PLANS[self.action]

    def ready(self, now_ms: int) -> list[StepPlan]:
        """Return the steps that may begin now: needs met, nobody's lease on them, their pause over."""
        return [
            step
            for step in self.plan
            if all(self.steps[need].done for need in step.needs)
            and self.steps[step.name].state in ("pending", "running")
            and self.steps[step.name].lease_ms <= now_ms
        ]


def job_id(node: str, epoch: int) -> str:
    """Return the id of the job that recovers (node, epoch)."""
    return f"{node}.{epoch}"


async def create(
    store: Store,
    node: str,
    epoch: int,
    *,
    action: str = "recover",
    cause: str,
    evidence: str,
    started_by: str,
    reason: str = "",
) -> tuple[Job, bool]:
    """Create the job of (node, epoch), or return the one that exists; the flag says which."""
    identity = job_id(node, epoch)
    now = int(time.time() * 1_000)
    fields: list[str | int] = []
    for name, value in (
        ("node", node), ("epoch", epoch), ("action", action), ("state", JobState.QUEUED.value),
        ("cause", cause), ("evidence", evidence), ("started_by", started_by), ("reason", reason),
        ("created_ms", now), ("updated_ms", now), ("new_epoch", 0), ("error", ""),
    ):  # fmt: skip
        fields += [name, value]
    entry = orjson.dumps({
        "event": "job.created", "cause": cause, "evidence": evidence, "by": started_by, "reason": reason,
        "at_ms": now,
    }).decode()  # fmt: skip
    created = bool(await store.run("job_create", [job_key(identity), job_key(identity, "audit")], [entry, *fields]))
    # The indexes are written again by whoever asks next: a crash between two writes must not hide a job.
    with available():
        async with store.redis.pipeline(transaction=False) as pipe:
            pipe.zadd(JOBS, {identity: now}, nx=True)
            pipe.zremrangebyrank(JOBS, 0, -_KEEP_JOBS - 1)
            if created:
                pipe.sadd(LIVE_JOBS, identity)
            pipe.hgetall(job_key(identity))
            values = (await pipe.execute())[-1]
    if not values:
        raise UnknownJob(f"job {identity!r} was lost in the moment it was made")
    job = _parse(identity, values)
    if not created and job.state in LIVE:
        with available():
            await store.redis.sadd(LIVE_JOBS, identity)
    if created:
        await _announce(store, job)
    return job, created


async def get(store: Store, job: str) -> Job:
    """Return a job. Raises UnknownJob, StoreUnavailable."""
    with available():
        values = await store.redis.hgetall(job_key(job))
    if not values:
        raise UnknownJob(f"no job {job!r}")
    return _parse(job, values)


async def newest(store: Store, count: int = 100) -> list[Job]:
    """Return the newest jobs, newest first."""
    with available():
        names = await store.redis.zrevrange(JOBS, 0, count - 1)
    return await _many(store, names)


async def live(store: Store) -> list[Job]:
    """Return the jobs that have not ended."""
    with available():
        names = sorted(await store.redis.smembers(LIVE_JOBS))
    found = {job.id: job for job in await _many(store, names) if job.state in LIVE}
    if len(found) < len(names):  # ended between two writes, or lost: nobody else would forget them
        with available():
            await store.redis.srem(LIVE_JOBS, *(name for name in names if name not in found))
    return list(found.values())


async def live_of(store: Store, node: str) -> Job | None:
    """Return the node's live job, if it has one."""
    return next((job for job in await live(store) if job.node == node), None)


async def begin_step(store: Store, job: Job, step: StepPlan, holder: str) -> tuple[str, int]:
    """Try to take a step's lease for `holder` (unique per call); return (verdict, attempt).

    Verdicts: ``begun``, ``done``, ``held``, ``early``, ``spent`` (the step is failed now), ``closed``.
    Raises StoreUnavailable.
    """
    reply = await store.run(
        "step_begin",
        [job_key(job.id), job_key(job.id, "audit")],
        [step.name, holder, step.lease_ms, step.tries, ",".join(step.needs)],
    )
    return reply[0], int(reply[1]) if reply[0] == "begun" else 0


async def prolong_step(store: Store, job: str, step: StepPlan, attempt: int, holder: str) -> None:
    """Keep a step's lease while its work goes on. Raises StepLost (taken over, or the job ended), StoreUnavailable."""
    if not await store.run("step_prolong", [job_key(job)], [step.name, attempt, holder, step.lease_ms]):
        raise StepLost(f"job {job}: step {step.name} attempt {attempt} was taken over")


async def end_step(
    store: Store,
    job: str,
    step: str,
    attempt: int,
    state: Literal["succeeded", "skipped", "failed", "pending"],
    outcome: Mapping[str, Any] | None = None,
    error: str = "",
    *,
    give_back: bool = False,
    restart_clock: bool = False,
    pause_ms: int = 0,
) -> None:
    """Write a step's outcome. Raises StepLost when another worker has taken over, StoreUnavailable.

    `give_back`: the attempt does not count; with `restart_clock` its deadline starts anew, too.
    `pause_ms`: a ``pending`` step may not begin again sooner.
    """
    returned = 2 if give_back and restart_clock else int(give_back)
    written = await store.run(
        "step_end",
        [job_key(job), job_key(job, "audit")],
        [step, attempt, state, orjson.dumps(dict(outcome or {})).decode(), error, returned, pause_ms],
    )
    if not written:
        raise StepLost(f"job {job}: step {step} attempt {attempt} was taken over")


async def set_new_epoch(store: Store, job: str, epoch: int) -> None:
    """Record the epoch that replaces the fenced one."""
    with available():
        await store.redis.hset(job_key(job), "new_epoch", epoch)


async def end(store: Store, job: Job, state: JobState, error: str = "") -> bool:
    """End a live job, once; True when this call did it. Raises StoreUnavailable."""
    ended = bool(await store.run("job_end", [job_key(job.id), job_key(job.id, "audit")], [state.value, error]))
    with available():
        async with store.redis.pipeline(transaction=False) as pipe:
            pipe.srem(LIVE_JOBS, job.id)
            pipe.expire(job_key(job.id), _KEEP_S)
            pipe.expire(job_key(job.id, "audit"), _KEEP_S)
            await pipe.execute()
    if ended:
        await _announce(store, await get(store, job.id))
    return ended


async def audit(store: Store, job: str, after: str = "-") -> list[tuple[str, dict[str, Any]]]:
    """Return the job's history as (id, entry), oldest first, from an exclusive id on."""
    start = after if after == "-" else f"({after}"
    with available():
        rows = await store.redis.xrange(job_key(job, "audit"), min=start)
    return [(row_id, _entry(fields["entry"])) for row_id, fields in rows]


def _entry(text: str) -> dict[str, Any]:
    entry: dict[str, Any] = orjson.loads(text)
    if "outcome" in entry:
        entry["outcome"] = orjson.loads(entry["outcome"])
    return entry


async def _announce(store: Store, job: Job) -> None:
    await events.publish(
        store,
        events.Kind.JOB_STATE,
        {"job": job.id, "node": job.node, "epoch": job.epoch, "state": job.state.value},
    )


async def _many(store: Store, names: list[str]) -> list[Job]:
    if not names:
        return []
    with available():
        async with store.redis.pipeline(transaction=False) as pipe:
            for name in names:
                pipe.hgetall(job_key(name))
            rows = await pipe.execute()
    return [_parse(name, row) for name, row in zip(names, rows, strict=True) if row]


def _parse(job: str, values: Mapping[str, str]) -> Job:
    plan = PLANS.get(values["action"], ())
    steps = {}
    for step in plan:
        record = orjson.loads(values.get(f"step:{step.name}", "{}"))
        outcome = orjson.loads(record.get("outcome") or "{}")
        steps[step.name] = Step(
            step.name,
            record.get("state", "pending"),
            int(record.get("attempts", 0)),
            record.get("holder", ""),
            int(record.get("lease_ms", 0)),
            int(record.get("began_ms", 0)),
            int(record.get("ended_ms", 0)),
            outcome,
            record.get("error", ""),
        )
    return Job(
        id=job,
        node=values["node"],
        epoch=int(values["epoch"]),
        action=values["action"],
        state=JobState(values["state"]),
        cause=values["cause"],
        evidence=values["evidence"],
        started_by=values["started_by"],
        reason=values["reason"],
        created_ms=int(values["created_ms"]),
        updated_ms=int(values["updated_ms"]),
        ended_ms=int(values.get("ended_ms", 0)),
        new_epoch=int(values["new_epoch"]),
        error=values["error"],
        steps=steps,
    )
