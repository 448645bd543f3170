"""Watches one node: feeds its judge with what link, probes and gateways show, and carries out what it decides."""

import asyncio
import contextlib
import random
import time
from collections.abc import Callable, Coroutine
from typing import Any

import structlog

from detectors.evidence import (
    ChangeState,
    Confirm,
    Dead,
    Decision,
    Evidence,
    Held,
    Knock,
    MovedOn,
    Pong,
    Probe,
    ProbeDue,
    ProbeFailed,
    ProbeLate,
    Reconnect,
    Vote,
)
from detectors.fleet import Fleet
from detectors.herald import Herald
from detectors.links import Link
from detectors.seat import Seat, follows, inherits, judge_for
from detectors.secondpath import ask_status, knock
from detectors.tasks import Tasks
from detectors.verdict import JUDGED, Judge
from detectors.voting import Voting
from recovery import registry
from recovery.errors import StoreUnavailable, UnknownNode
from recovery.registry import Node, NodeState

_NO_LINK_S = 0.05
_LEAST_S, _LEAST_STARVED_S = 0.005, 0.05
_EARLY_S = 0.001
"""What a timer may be early by."""
_BUNCH_S = 0.01
"""Nodes are pinged together at these times: one waking of the loop, and of gRPC's thread, for many pings."""
_RETRY_S = 0.5
_SETTLE_S = 1.5
"""Age of our own last write up to which a differing registry entry may just have been read before it."""
_BEHIND_S = 3.0
"""How long the registry may show an older epoch than the one judged before it is taken at its word."""
_OWN = JUDGED | {NodeState.DEAD}

Limit = asyncio.Semaphore
Asker = Callable[..., Coroutine[Any, Any, Evidence]]

log = structlog.get_logger()


class Watch:
    """One node under watch, over all its epochs, until `run` is cancelled."""

    def __init__(self, fleet: Fleet, node: Node, watchers: tuple[str, ...]) -> None:
        self._fleet = fleet
        self._node = node
        self.seat = Seat(fleet.sentinel, watchers)
        self.judge = judge_for(fleet.rules, node, None, time.monotonic())
        self._link = Link(
            node.id, node.agent, fleet.token, fleet.sentinel, self.take, fleet.opening, lambda: self.judge.report
        )
        self._herald = Herald(fleet, node.id, self.seat, self.observe, lambda: self.judge.withdraw())
        self._tasks = Tasks()
        self.voting = Voting(fleet, node.id, self.seat, self._tasks.start, self.take)
        self._timer: asyncio.TimerHandle | None = None
        self._pinged = self._next_ping = self._due = 0.0
        self._misses = 0
        self._looking_up = self._taking_over = False
        self._behind_since: float | None = None
        if self.seat.primary and node.state is NodeState.DEAD:
            self._herald.stood_dead(node)

    async def run(self) -> None:
        """Watch; whatever breaks in a part comes out here."""
        self._tasks.open()
        try:
            for part in (self._link.run, self._probe_now_and_then, self._herald.run, self._take_over):
                self._tasks.start(part())
            self._arm(time.monotonic())
            await self._tasks.wait()
        finally:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = None
            self._fleet.blindness.forget(self._node.id)
            self._fleet.hurries(self._node.id, wanted=False)
            await self._tasks.close()

    def take(self, evidence: Evidence) -> None:
        """Have the judge weigh something."""
        now = time.monotonic()
        decisions = self._ready().take(evidence, now)
        if decisions:
            self._carry_out(decisions)
        if (
            type(evidence) is Pong
            and self._timer is not None
            and (evidence.report is None or not evidence.report.pending)
        ):
            self._arm(now)  # nothing is late, nothing can stand: the look that was to notice it would be in vain

    def observe(self, node: Node) -> None:
        """Take in what the registry says; it has the last word on what jobs and operators set."""
        if node.agent != self._node.agent:
            self._link.reconnect(node.agent)
        self._node = node
        judge = self.judge
        behind, self._behind_since = self._behind_since, None
        if node.epoch > judge.epoch:
            log.info("sentinel.new_epoch", node=node.id, epoch=node.epoch, state=node.state.value)
            self._judge_anew(node)
        elif node.epoch < judge.epoch:
            # A read that crossed a newer one is over at once; if it stays so, Redis lost the fence we have seen.
            now = time.monotonic()
            self._behind_since = now if behind is None else behind
            if now - self._behind_since > _BEHIND_S:
                log.warning("sentinel.epoch_lost", node=node.id, epoch=node.epoch, known=judge.epoch)
                self._judge_anew(node)
        elif (node.state, node.weight) == (judge.state, judge.weight):
            return
        elif node.state not in _OWN or judge.state not in _OWN or node.state is NodeState.DEAD:
            if node.state is not judge.state:
                judge.adopt(node.state, node.weight)
        elif judge.state is NodeState.DEAD:
            if self._herald.quiet_s > _SETTLE_S:
                self._herald.death_again()  # it was lost, or Redis came back without it
        elif not self.seat.primary:
            if follows(judge, node):
                judge.adopt(node.state, node.weight)
        elif self._herald.quiet_s > _SETTLE_S:
            # Our write was lost, or Redis came back without it.
            why = f"written again: the registry said {node.state.value} with weight {node.weight:g}"
            self._herald.change(judge.epoch, ChangeState(judge.state, judge.weight, why))

    # ---- beside other sentinels -------------------------------------------------------------------------------

    def assign(self, watchers: tuple[str, ...]) -> None:
        """Take in who watches this node now, its primary first; this sentinel may have just lost it."""
        self.seat.assign(watchers)
        self._tasks.start(self._take_over())
        self.voting.count()

    async def _take_over(self) -> None:
        """Where this sentinel has become the primary: go on where the last one stopped, by what it has written."""
        if self._taking_over:
            return
        self._taking_over = True
        try:
            while self.seat.chosen and not self.seat.primary:
                try:
                    node = await registry.get(self._fleet.store, self._node.id)
                except (StoreUnavailable, UnknownNode):
                    await asyncio.sleep(_RETRY_S)
                    continue
                self.seat.primary = self.seat.chosen
                self._succeed(node)
        finally:
            self._taking_over = False

    def _succeed(self, node: Node) -> None:
        log.info("sentinel.takes_over", node=node.id, epoch=node.epoch, state=node.state.value, weight=node.weight)
        if node.state is NodeState.DEAD:
            self._herald.stood_dead(node)
        elif inherits(self.judge, node):
            self.judge.adopt(node.state, node.weight, node.hold_s)
        self.observe(node)

    # ---- loops ------------------------------------------------------------------------------------------------

    def _beat(self) -> None:
        """Look, ping if it is time, and be called again: a timer costs a fraction of a task that sleeps."""
        self._fleet.woke(time.monotonic() - self._due)
        try:
            self._look()
        except Exception as error:  # noqa: BLE001 - `run` raises it
            self._tasks.broken(error)
            return
        self._arm(time.monotonic())

    def _arm(self, now: float) -> None:
        pause = min(self._next_ping - now, self.judge.next_look_s()) if self._link.up else _NO_LINK_S
        if self._timer is not None:
            self._timer.cancel()
        pause = max(_LEAST_STARVED_S if self._fleet.starved else _LEAST_S, pause)
        self._due = now + pause
        self._timer = asyncio.get_running_loop().call_later(pause, self._beat)

    def _look(self) -> None:
        now = time.monotonic()
        decisions = self._ready().tick(now)
        if decisions:
            self._carry_out(decisions)
        judge, fleet = self.judge, self._fleet
        hurries = fleet.hurries(self._node.id, wanted=judge.ping_interval_s < fleet.pace.usual_s)
        interval = judge.ping_interval_s if hurries else fleet.pace.interval_s
        if self._link.up and now >= self._pinged + interval - _EARLY_S:  # the cadence may have become quicker since
            self._link.ping(judge.ping(now))
            self._pinged += interval
            latest = now - interval / 2
            if self._pinged < latest:  # a late timer must not bunch one node's pings up, nor make all later ones late
                self._pinged = latest - latest % _BUNCH_S
        self._next_ping = self._pinged + interval
        if judge.misses > self._misses:
            self._fleet.metrics.misses.inc(judge.misses - self._misses)
        self._misses = judge.misses
        self._show_link(now)

    async def _probe_now_and_then(self) -> None:
        low, high = self._fleet.rules.probe_interval_s
        while True:
            await asyncio.sleep(random.uniform(low, high))  # noqa: S311 - spreads load, hides nothing
            self.take(ProbeDue())

    # ---- decisions --------------------------------------------------------------------------------------------

    def _carry_out(self, decisions: list[Decision]) -> None:
        for decision in decisions:
            match decision:
                case Dead():
                    self._herald.death(self.judge.epoch, decision)
                case Vote():
                    self.voting.cast(self.judge.epoch, decision)
                case ChangeState():
                    self._herald.change(self.judge.epoch, decision)
                case Knock(deadline_s, every_s):
                    self._ask(self._fleet.knocking, knock, self._node.agent, deadline_s, every_s)
                case Confirm(deadline_s):
                    self._ask(
                        self._fleet.asking, ask_status, self._node.id, self._node.agent, self._fleet.token, deadline_s
                    )
                case Probe():
                    self._ask(None, self._probe, decision)
                case Reconnect() if not self._fleet.starved:
                    log.warning("sentinel.stream_stuck", **self._about)
                    self._link.reconnect()
                case MovedOn(epoch):
                    self._look_up(epoch)
                case Held(cause, evidence):
                    log.debug("sentinel.verdict_held", **self._about, cause=cause, evidence=evidence)

    def _ask(self, limit: Limit | None, asker: Asker, *args: Any) -> None:
        self._tasks.start(self._hear(self.judge, limit, asker, *args))

    async def _hear(self, judge: Judge, limit: Limit | None, asker: Asker, *args: Any) -> None:
        async with limit or contextlib.nullcontext():
            await self._fleet.fed()
            answer = await asker(*args)
        if judge is self.judge:
            self.take(answer)

    async def _probe(self, order: Probe) -> Evidence:
        await asyncio.sleep(order.delay_s)
        about = self._about
        shown = await self._link.probe(self.judge.epoch, order.deadline_s)
        if isinstance(shown, ProbeLate | ProbeFailed):
            log.info("sentinel.probe_bad", **about, detail=shown.detail)
        return shown

    def _look_up(self, epoch: int) -> None:
        if not self._looking_up:
            self._looking_up = True
            self._tasks.start(self._moved_on(epoch))

    async def _moved_on(self, epoch: int) -> None:
        try:
            node = await registry.get(self._fleet.store, self._node.id)
        except (StoreUnavailable, UnknownNode):
            await asyncio.sleep(_RETRY_S)
        else:
            self.observe(node)
            if node.epoch < epoch:
                await asyncio.sleep(0.1)  # the agent is ahead of its own registry entry
        finally:
            self._looking_up = False

    # ---- small things -----------------------------------------------------------------------------------------

    @property
    def _about(self) -> dict[str, str | int]:
        return {"node": self._node.id, "epoch": self.judge.epoch}

    def _ready(self) -> Judge:
        judge, fleet = self.judge, self._fleet
        judge.starved = fleet.starved
        judge.blind = judge.starved or fleet.blind
        judge.majority_needed = self.seat.majority_needed
        return judge

    def _judge_anew(self, node: Node) -> None:
        self.judge = judge_for(self._fleet.rules, node, self.judge, time.monotonic())
        self.seat.restart()

    def _show_link(self, now: float) -> None:
        blindness, node = self._fleet.blindness, self._node
        if self.judge.link_ok:
            if self._link.up:  # else it is still being opened
                blindness.up(node.id, node.host)
        elif self.judge.state in _OWN:
            blindness.lost(node.id, now, node.host)
        else:
            blindness.forget(node.id)
