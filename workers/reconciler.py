"""The reconciler: once in a while it compares every live job with the clock and sets right what messages lost.

A killed worker thus costs seconds, whatever Celery makes of its message.
"""

import time
from dataclasses import dataclass, field

import structlog

from recovery import jobs, limits, registry
from recovery.errors import StepLost, StoreUnavailable, UnbrokenError
from recovery.jobs import Job, StepPlan
from recovery.registry import NodeState
from recovery.store import Store, available
from workers import ending
from workers.context import PERMIT_MS, TAKEOVERS
from workers.nudge import Nudger

log = structlog.get_logger()

TICK_S = 0.5
_UNDERWAY_MS = 1_500
"""A step that became ready this recently has a message under way."""
_PAUSE_S = (1.5, 3.0, 6.0, 12.0, 30.0)
"""Pauses between nudges for the same standing of a step: busy workers must not drown in messages."""
_LENIENCE_S = 15.0
"""After Redis was away no step is called late for this long: nobody could work."""
_NODES_EVERY_S = 2.0
_STRANDED_S = 10.0
"""Time a node may wait for a recovery that nobody has begun, e.g. because its message or its job was lost."""
_IN_RECOVERY = frozenset({NodeState.DEAD, NodeState.RECOVERING, NodeState.WARMING})
"""States that only a live job ends."""


@dataclass(slots=True)
class _Nudged:
    standing: tuple[str, int, int]
    times: int
    next_s: float


@dataclass(slots=True)
class Reconciler:
    """Looks at the live jobs; several at once do no harm."""

    store: Store
    nudger: Nudger
    _nudged: dict[tuple[str, str], _Nudged] = field(default_factory=dict)
    _lenient_until: float = 0.0
    _nodes_at: float = 0.0
    _alone: dict[tuple[str, int], float] = field(default_factory=dict)
    """(node, epoch) in recovery without a job → since when."""

    async def tick(self) -> None:
        """Look once at every live job, now and then for nodes that lack one. Never raises for a Redis that is away."""
        try:
            now_ms = await _now_ms(self.store)
            live = await jobs.live(self.store)
            for job in live:
                try:
                    await self._look(job, now_ms)
                except StoreUnavailable:
                    raise
                except (UnbrokenError, ValueError, KeyError) as error:
                    log.exception("reconciler.job_unclear", job=job.id, error=repr(error))
            if time.monotonic() >= self._nodes_at:
                self._nodes_at = time.monotonic() + _NODES_EVERY_S
                await self._look_for_stranded({job.node for job in live})
        except StoreUnavailable as error:
            self._lenient_until = time.monotonic() + _LENIENCE_S
            self._alone.clear()
            log.warning("reconciler.store_away", error=str(error))
            return
        names = {job.id for job in live}
        self._nudged = {key: value for key, value in self._nudged.items() if key[0] in names}

    def note_sent(self, job: Job, step: str) -> None:
        """Remember a message somebody else in this process has just sent."""
        self._nudged[job.id, step] = _Nudged(_standing(job, step), 0, time.monotonic() + _PAUSE_S[0])

    def knows(self, job: Job, plan: StepPlan) -> bool:
        """Whether a message for the step, as it stands, was sent from here."""
        known = self._nudged.get((job.id, plan.name))
        return known is not None and known.standing == _standing(job, plan.name)

    async def _look(self, job: Job, now_ms: int) -> None:
        if await ending.settle(self.store, job):
            return
        if _holds_permit(job):
            await limits.prolong(self.store, TAKEOVERS, job.id, PERMIT_MS)
        for plan in job.ready(now_ms):
            if self._late(job, plan, now_ms):
                await self._give_up(job, plan)
            elif self._due(job, plan, now_ms):
                log.info("job.nudged", job=job.id, node=job.node, epoch=job.epoch, step=plan.name)
                await self.nudger.send(job, plan)

    async def _look_for_stranded(self, recovering: set[str]) -> None:
        """Begin the recovery that a node has waited for in vain."""
        now = time.monotonic()
        alone = {
            (node.id, node.epoch): node
            for node in await registry.all_nodes(self.store)
            if node.state in _IN_RECOVERY and node.id not in recovering
        }
        self._alone = {key: self._alone.get(key, now) for key in alone}
        for (name, epoch), node in alone.items():
            if now - self._alone[name, epoch] < _STRANDED_S:
                continue
            self._alone[name, epoch] = now
            evidence = f"{node.state.value} for {_STRANDED_S:g} s without a live job"
            job, created = await jobs.create(
                self.store, name, epoch, cause=node.cause or "stranded", evidence=evidence, started_by="reconciler"
            )
            log.error("node.stranded", node=name, epoch=epoch, job=job.id, created=created, evidence=evidence)

    def _late(self, job: Job, plan: StepPlan, now_ms: int) -> bool:
        began = job.steps[plan.name].began_ms
        return bool(began) and now_ms - began > plan.deadline_s * 1_000 and time.monotonic() > self._lenient_until

    def _due(self, job: Job, plan: StepPlan, now_ms: int) -> bool:
        step, standing = job.steps[plan.name], _standing(job, plan.name)
        known = self._nudged.get((job.id, plan.name))
        if known is None or known.standing != standing:
            fresh = step.state == "pending" and not step.ended_ms
            if fresh and now_ms - _ready_since(job, plan) < _UNDERWAY_MS:
                return False
            known = _Nudged(standing, 0, 0.0)
        if time.monotonic() < known.next_s:
            return False
        pause = _PAUSE_S[min(known.times, len(_PAUSE_S) - 1)]
        self._nudged[job.id, plan.name] = _Nudged(standing, known.times + 1, time.monotonic() + pause)
        return True

    async def _give_up(self, job: Job, plan: StepPlan) -> None:
        error = job.steps[plan.name].error or "its worker was lost"
        reason = f"not done within its deadline of {plan.deadline_s:g} s: {error}"
        verdict, attempt = await jobs.begin_step(self.store, job, plan, f"reconciler:{time.monotonic_ns()}")
        if verdict == "begun":
            try:
                await jobs.end_step(self.store, job.id, plan.name, attempt, "failed", {}, reason, give_back=True)
            except StepLost:
                return
        if verdict in ("begun", "spent"):
            await ending.settle(self.store, await jobs.get(self.store, job.id))


def _standing(job: Job, step: str) -> tuple[str, int, int]:
    record = job.steps[step]
    return record.state, record.attempts, record.ended_ms


def _ready_since(job: Job, plan: StepPlan) -> int:
    return max([job.created_ms, *(job.steps[need].ended_ms for need in plan.needs)])


def _holds_permit(job: Job) -> bool:
    """Whether the job is past the beginning of its takeover and before its end."""
    reclaim, warm_up = job.steps.get("reclaim"), job.steps.get("warm_up")
    return (
        reclaim is not None and warm_up is not None and not warm_up.done and reclaim.state in ("running", "succeeded")
    )


async def _now_ms(store: Store) -> int:
    with available():
        seconds, micros = await store.redis.time()
    return int(seconds) * 1_000 + int(micros) // 1_000
