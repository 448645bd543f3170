"""Watches one node: feeds its judge with what link, probes and gateways show, and carries out what it decides."""

import asyncio
import random
import time
from collections.abc import Coroutine
from typing import Any

import structlog

from detectors.evidence import (
    ChangeState,
    Confirm,
    Dead,
    Decision,
    Evidence,
    Held,
    MovedOn,
    Probe,
    ProbeDue,
    ProbeFailed,
    ProbeLate,
    ProbeNeutral,
    Reconnect,
)
from detectors.figures import heartbeat, routing_figures
from detectors.fleet import Fleet
from detectors.links import Link, ask_status
from detectors.outbox import Outbox, Posting
from detectors.probes import probe
from detectors.verdict import JUDGED, Judge
from recovery import events, registry
from recovery.errors import StaleEpoch, StoreUnavailable, UnknownNode
from recovery.registry import Node, NodeState
from recovery.stopping import stop_tasks

_HEARTBEAT_S = 1.0
_NO_LINK_S = 0.05
_LEAST_S = 0.005
_SETTLE_S = 1.5
"""Age of our own last write up to which a differing registry entry may just have been read before it."""
_BEHIND_S = 3.0
"""How long the registry may show an older epoch than the one judged before it is taken at its word."""
_HELD_S = 5.0
"""Least time between two log lines about verdicts held back."""
_OWN = JUDGED | {NodeState.DEAD}

log = structlog.get_logger()


class Watch:
    """One node under watch, over all its epochs, until `run` is cancelled."""

    def __init__(self, fleet: Fleet, node: Node) -> None:
        self._fleet = fleet
        self._node = node
        self.judge = self._judge_for(node, None)
        self._link = Link(node.id, node.agent, fleet.token, fleet.sentinel, self.take)
        self._outbox = Outbox(self._publish)
        self._tasks: set[asyncio.Task[None]] | None = None
        self._broken: asyncio.Future[None] | None = None
        self._looking_up = False
        self._held_at = -_HELD_S
        self._behind_since: float | None = None
        self._verdict = Posting(0, Dead("unknown", "", proof=True))
        """The last one, in case Redis loses it."""
        if node.state is NodeState.DEAD:
            # Its verdict may have been lost with the sentinel that reached it; jobs take it once only.
            evidence = node.extra.get("evidence") or "stood dead when this sentinel started"
            wall_ms = int(node.extra.get("dead_ms") or time.time() * 1_000)
            self._verdict = Posting(node.epoch, Dead(node.cause or "unknown", evidence, proof=True), wall_ms)
            self._outbox.put(self._verdict)

    async def run(self) -> None:
        """Watch; whatever breaks in a part comes out here."""
        # No TaskGroup: it cancels each part once, and a part that loses that one cancel would never end.
        self._tasks, self._broken = set(), asyncio.get_running_loop().create_future()
        try:
            for part in (self._link.run, self._beat, self._probe_now_and_then, self._report, self._outbox.run):
                self._start(part())
            await self._broken
        finally:
            tasks, self._tasks = self._tasks, None
            self._fleet.blindness.forget(self._node.id)
            await stop_tasks(*tasks)

    def take(self, evidence: Evidence) -> None:
        """Have the judge weigh something."""
        self._carry_out(self._ready().take(evidence, time.monotonic()))

    def observe(self, node: Node) -> None:
        """Take in what the registry says; it has the last word on what jobs and operators set."""
        if node.agent != self._node.agent:
            self._link.reconnect(node.agent)
        self._node = node
        judge = self.judge
        behind, self._behind_since = self._behind_since, None
        if node.epoch > judge.epoch:
            log.info("sentinel.new_epoch", node=node.id, epoch=node.epoch, state=node.state.value)
            self.judge = self._judge_for(node, judge)
        elif node.epoch < judge.epoch:
            # A read that crossed a newer one is over at once; if it stays so, Redis lost the fence we have seen.
            now = time.monotonic()
            self._behind_since = now if behind is None else behind
            if now - self._behind_since > _BEHIND_S:
                log.warning("sentinel.epoch_lost", node=node.id, epoch=node.epoch, known=judge.epoch)
                self.judge = self._judge_for(node, judge)
        elif (node.state, node.weight) == (judge.state, judge.weight):
            return
        elif node.state not in _OWN or judge.state not in _OWN or node.state is NodeState.DEAD:
            if node.state is not judge.state:
                judge.adopt(node.state, node.weight)
        elif self._outbox.quiet_s > _SETTLE_S:
            # Our write was lost, or Redis came back without it.
            again = ChangeState(judge.state, judge.weight, "written again")
            self._outbox.put(self._verdict if judge.state is NodeState.DEAD else Posting(judge.epoch, again))

    # ---- loops ------------------------------------------------------------------------------------------------

    async def _beat(self) -> None:
        next_ping = 0.0
        while True:
            self._carry_out(self._ready().tick(time.monotonic()))
            now, interval = time.monotonic(), self.judge.ping_interval_s
            next_ping = min(next_ping, now + interval)  # the cadence may have become quicker
            if self._link.up and now >= next_ping:
                self._link.ping(self.judge.ping(now))
                # A late timer must not bunch pings up, nor make all later ones late.
                next_ping = max(next_ping + interval, now + interval / 2)
            self._show_link(now)
            pause = min(next_ping - now, self.judge.next_look_s()) if self._link.up else _NO_LINK_S
            await asyncio.sleep(max(_LEAST_S, pause))

    async def _probe_now_and_then(self) -> None:
        low, high = self._fleet.rules.probe_interval_s
        while True:
            await asyncio.sleep(random.uniform(low, high))  # noqa: S311 - spreads load, hides nothing
            self.take(ProbeDue())

    async def _report(self) -> None:
        while True:
            await asyncio.sleep(_HEARTBEAT_S)
            try:
                await self._write_figures()
            except (StoreUnavailable, StaleEpoch):
                continue  # the next second has newer figures

    async def _write_figures(self) -> None:
        judge, fleet = self.judge, self._fleet
        await events.publish_heartbeat(fleet.store, heartbeat(self._node.id, judge, fleet.sentinel))
        if judge.rtt.samples:
            figures = routing_figures(judge, fleet.settings.routing)
            await registry.write(fleet.store, self._node.id, judge.epoch, figures, only_in=[judge.state])

    # ---- decisions --------------------------------------------------------------------------------------------

    def _carry_out(self, decisions: list[Decision]) -> None:
        for decision in decisions:
            match decision:
                case Dead():
                    self._verdict = Posting(self.judge.epoch, decision)
                    self._outbox.put(self._verdict)
                case ChangeState():
                    self._outbox.put(Posting(self.judge.epoch, decision))
                case Confirm(deadline_s):
                    self._start(self._confirm(self.judge, deadline_s))
                case Probe():
                    self._start(self._probe(self.judge, decision))
                case Reconnect():
                    log.warning("sentinel.stream_stuck", node=self._node.id, epoch=self.judge.epoch)
                    self._link.reconnect()
                case MovedOn(epoch):
                    self._look_up(epoch)
                case Held(cause, evidence):
                    self._log_held(cause, evidence)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        if self._tasks is None:
            work.close()
            return
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if self._tasks is not None:
            self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and self._broken is not None and not self._broken.done():
            self._broken.set_exception(error)

    async def _confirm(self, judge: Judge, deadline_s: float) -> None:
        answer = await ask_status(self._node.id, self._node.agent, self._fleet.token, deadline_s)
        if judge is self.judge:
            self.take(answer)

    async def _probe(self, judge: Judge, order: Probe) -> None:
        await asyncio.sleep(order.delay_s)
        url = (judge.report.engine_url if judge.report else "") or self._node.engine_url
        if url:
            shown = await probe(self._node.kind, url, self._fleet.session, order.deadline_s)
        else:
            shown = ProbeNeutral("no engine address")
        if isinstance(shown, ProbeLate | ProbeFailed):
            log.info("sentinel.probe_bad", node=self._node.id, epoch=judge.epoch, detail=shown.detail)
        if judge is self.judge:
            self.take(shown)

    def _look_up(self, epoch: int) -> None:
        if not self._looking_up:
            self._looking_up = True
            self._start(self._moved_on(epoch))

    async def _moved_on(self, epoch: int) -> None:
        try:
            node = await registry.get(self._fleet.store, self._node.id)
        except (StoreUnavailable, UnknownNode):
            await asyncio.sleep(_HEARTBEAT_S)
        else:
            self.observe(node)
            if node.epoch < epoch:
                await asyncio.sleep(0.1)  # the agent is ahead of its own registry entry
        finally:
            self._looking_up = False

    # ---- publishing -------------------------------------------------------------------------------------------

    async def _publish(self, posting: Posting) -> None:
        try:
            if isinstance(posting.what, Dead):
                await self._publish_death(posting, posting.what)
            else:
                await self._publish_state(posting.epoch, posting.what)
        except StaleEpoch as error:
            log.info("sentinel.overtaken", node=self._node.id, epoch=posting.epoch, current=error.current)

    async def _publish_death(self, posting: Posting, verdict: Dead) -> None:
        node, store = self._node.id, self._fleet.store
        if not verdict.proof and not await self._stands(posting.epoch):
            return
        verdict_fields = {"cause": verdict.cause, "evidence": verdict.evidence}
        fields: dict[str, str | int | float] = {"node": node, "epoch": posting.epoch, **verdict_fields}
        fields |= {"sentinel": self._fleet.sentinel, "detected_ms": posting.wall_ms}
        await events.publish(store, events.Kind.NODE_DEAD, fields)
        log.warning("sentinel.node_dead", node=node, epoch=posting.epoch, **verdict_fields)
        await registry.set_state(
            store,
            node,
            posting.epoch,
            NodeState.DEAD,
            only_in=sorted(JUDGED),
            cause=verdict.cause,
            evidence=verdict.evidence,
            dead_ms=posting.wall_ms,
        )

    async def _stands(self, epoch: int) -> bool:
        """Whether an unproven verdict still makes sense; silence is also what an orderly stop or a fence looks like."""
        try:
            node = await registry.get(self._fleet.store, self._node.id)
        except StoreUnavailable:
            self.judge.withdraw()
            return False
        if node.epoch == epoch and node.state in JUDGED:
            return True
        self.observe(node)
        return False

    async def _publish_state(self, epoch: int, change: ChangeState) -> None:
        node = self._node.id
        only_in = sorted(
            {*JUDGED, NodeState.STOPPED, NodeState.DRAINING} if change.state is NodeState.STOPPED else JUDGED
        )
        changed = await registry.set_state(
            self._fleet.store, node, epoch, change.state, weight=change.weight, only_in=only_in
        )
        log.info(
            "sentinel.node_state",
            node=node,
            epoch=epoch,
            state=change.state.value,
            weight=change.weight,
            why=change.why,
            written=changed,
        )

    # ---- small things -----------------------------------------------------------------------------------------

    def _ready(self) -> Judge:
        self.judge.blind = self._fleet.blind
        return self.judge

    def _judge_for(self, node: Node, before: Judge | None) -> Judge:
        state = node.state
        if before is not None and state is NodeState.STOPPED:
            state = NodeState.STARTING  # a stopped node under a new epoch is on its way back
        return Judge(
            self._fleet.rules,
            node.epoch,
            state,
            time.monotonic(),
            weight=node.weight,
            slots=node.slots,
            before=before,
        )

    def _show_link(self, now: float) -> None:
        blindness, node = self._fleet.blindness, self._node.id
        if self._link.up and self.judge.link_ok:
            blindness.up(node)
        elif self.judge.state in _OWN:
            blindness.lost(node, now)
        else:
            blindness.forget(node)

    def _log_held(self, cause: str, evidence: str) -> None:
        now = time.monotonic()
        if now - self._held_at >= _HELD_S:
            self._held_at = now
            log.warning("sentinel.blind", node=self._node.id, epoch=self.judge.epoch, cause=cause, evidence=evidence)
