"""The sentinel process: finds the nodes, and watches its share of them (requirements A1, B)."""

import asyncio
import contextlib
import gc
import random
import secrets
import socket
import time
from collections.abc import Coroutine, Generator
from typing import Any

import structlog

from detectors import announce
from detectors.fleet import Fleet
from detectors.hearing import Hearing
from detectors.leaseround import LeaseRound
from detectors.members import Members
from detectors.metrics import Metrics
from detectors.rules import Rules
from detectors.sharing import watchers
from detectors.watch import Watch
from recovery import registry
from recovery.auth import read_token
from recovery.config import Settings
from recovery.errors import StoreUnavailable
from recovery.registry import Node
from recovery.stopping import stop_tasks
from recovery.store import connect

_DISCOVER_S = 1.0
_FIELDS = (
    *("epoch", "state", "weight", "agent", "slots", "host", "baseline_us", "hold_s"),
    *("cause", "evidence", "dead_ms", "took_ms"),
)
"""What watches go by; all of a node's fields, of hundreds of nodes each second, would cost too much."""
_RETRY_S = 0.3
_SLEPT_S = 1.0
_LINGER_S = 1.0
"""How long a node is still watched after it went to others: they must have found it first."""
_HEARTBEAT_S = 1.0
_REPORT_S = 0.1
_GC_YOUNG = 20_000
"""Objects until the collector looks: hundreds of nodes make as many as it starts at each 0.1 s."""

log = structlog.get_logger()


async def run(settings: Settings, stop: asyncio.Event) -> int:
    """Watch all nodes until `stop` is set; return the exit code. Raises SettingsError, StoreUnsafe."""
    with _rare_collections():
        return await _run(settings, stop)


@contextlib.contextmanager
def _rare_collections() -> Generator[None]:
    """What is imported stays: a full collection that looks at it as well stops all watches for 50 ms."""
    usual = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(_GC_YOUNG, *usual[1:])
    try:
        yield
    finally:
        gc.set_threshold(*usual)
        gc.unfreeze()


async def _run(settings: Settings, stop: asyncio.Event) -> int:
    token = read_token(settings.auth.agent_token_file)
    name = settings.sentinel.id or f"{socket.gethostname()}-{secrets.token_hex(3)}"
    metrics = Metrics()
    store = connect(settings.redis)
    unserve = metrics.serve(settings.sentinel)
    try:
        try:
            await store.check()
        except StoreUnavailable as error:
            log.warning("sentinel.waits_for_redis", error=str(error))
        fleet = Fleet(settings, Rules.of(settings), store, token, name, Members(store, name), metrics)
        return await Sentinel(fleet).run(stop)
    finally:
        await asyncio.to_thread(unserve)
        await store.aclose()


class Sentinel:
    """The watches of its share, and what feeds them from Redis."""

    def __init__(self, fleet: Fleet) -> None:
        self.watches: dict[str, Watch] = {}
        self._fleet = fleet
        self._hearing = Hearing(fleet, self.watches, self._observe)
        self._leases = LeaseRound(fleet, self.watches)
        self._lost: dict[str, float] = {}
        """Nodes that others watch now: until when they are still watched here."""
        self._report_at: dict[str, float] = {}
        self._look = asyncio.Event()
        self._watching: dict[str, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self, stop: asyncio.Event) -> int:
        """Run until `stop` is set."""
        log.info("sentinel.started", sentinel=self._fleet.sentinel)
        parts = (
            self._fleet.members.run(lambda: self._fleet.blindness.blind, self._share),
            self._discover(),
            self._hearing.run(),
            self._leases.run(),
            self._report(),
            self._watch_self(),
        )
        core = {self._start(part, "sentinel") for part in parts}
        stopped = asyncio.create_task(stop.wait())
        try:
            done, _ = await asyncio.wait({stopped, *core}, return_when=asyncio.FIRST_COMPLETED)
            for task in done - {stopped}:
                task.result()
        finally:
            await stop_tasks(stopped, *self._tasks)
            await self._fleet.members.leave()
            log.info("sentinel.stopped", sentinel=self._fleet.sentinel)
        return 0

    # ---- nodes ------------------------------------------------------------------------------------------------

    async def _discover(self) -> None:
        await self._fleet.members.known()
        while True:
            self._look.clear()
            try:
                for node in await registry.all_nodes(self._fleet.store, _FIELDS):
                    self._observe(node)
            except StoreUnavailable:
                await asyncio.sleep(_RETRY_S)
            await self._let_go()
            try:
                await asyncio.wait_for(self._look.wait(), _DISCOVER_S)
            except TimeoutError:
                continue

    def _observe(self, node: Node) -> None:
        watch = self.watches.get(node.id)
        if watch is not None:
            watch.observe(node)
            return
        watchers = self._watchers(node.id)
        if not node.agent or node.epoch == 0 or not self._mine(node.id, watchers):
            return
        self.watches[node.id] = watch = Watch(self._fleet, node, watchers)
        self._report_at[node.id] = time.monotonic() + random.uniform(0, _HEARTBEAT_S)  # noqa: S311 - spreads load
        log.info("sentinel.watches", node=node.id, epoch=node.epoch, state=node.state.value, agent=node.agent)
        self._watching[node.id] = self._start(self._keep(node.id, watch), f"watch {node.id}")

    async def _keep(self, node: str, watch: Watch) -> None:
        """Run a watch; one that breaks is dropped, and the next look at the registry makes a new one."""
        try:
            await watch.run()
        except Exception:  # one node's trouble must not cost the others their watch
            log.exception("sentinel.watch_broke", node=node)
        finally:
            for known in (self.watches, self._watching, self._lost, self._report_at):
                known.pop(node, None)
            self._leases.forget(node)
            self._count()

    # ---- shares -----------------------------------------------------------------------------------------------

    def _watchers(self, node: str) -> tuple[str, ...]:
        return watchers(node, self._fleet.members.counted, self._fleet.settings.heartbeat.watchers)

    def _mine(self, node: str, counted: tuple[str, ...]) -> bool:
        """Whether to watch it: a sentinel that is blind looks on, so that it notices when it sees again."""
        me, members = self._fleet.sentinel, self._fleet.members.counted
        if me in counted or me in members:
            return me in counted
        return me in watchers(node, (*members, me), self._fleet.settings.heartbeat.watchers)

    def _share(self) -> None:
        """The living sentinels are others now: each node goes to its new watchers."""
        until = time.monotonic() + _LINGER_S
        for node, watch in self.watches.items():
            counted = self._watchers(node)
            watch.assign(counted)
            if self._mine(node, counted):
                self._lost.pop(node, None)
            else:
                self._lost.setdefault(node, until)
        self._look.set()
        self._count()

    async def _let_go(self) -> None:
        now = time.monotonic()
        over = [node for node, until in self._lost.items() if until <= now]
        for node in over:
            log.info("sentinel.lets_go", node=node)
        await stop_tasks(*(self._watching[node] for node in over))

    # ---- figures ----------------------------------------------------------------------------------------------

    async def _report(self) -> None:
        """Write each node's figures once a second, a few nodes at a time."""
        while True:
            await asyncio.sleep(_REPORT_S)
            now = time.monotonic()
            due = [node for node, at in self._report_at.items() if at <= now]
            for node in due:
                self._report_at[node] = max(self._report_at[node] + _HEARTBEAT_S, now)
            judges = [(node, self.watches[node].judge) for node in due if self.watches[node].seat.primary]
            self._count()
            if not judges:
                continue
            try:
                await announce.figures(self._fleet, judges)
            except StoreUnavailable:
                continue  # the next second has newer figures

    def _count(self) -> None:
        self._fleet.metrics.watched.set(len(self.watches))
        self._fleet.metrics.first.set(sum(watch.seat.primary for watch in self.watches.values()))

    async def _watch_self(self) -> None:
        """Notice own sleeps and blindness, and say so once each."""
        fleet, before, blind_since = self._fleet, time.monotonic(), 0.0
        while True:
            await asyncio.sleep(0.1)
            now = time.monotonic()
            if now - before > _SLEPT_S:
                fleet.metrics.sleeps.inc()
                log.warning("sentinel.slept", seconds=round(now - before, 1))
            before = now
            fleet.metrics.blind.set(fleet.blind)
            if fleet.blind_to and not blind_since:
                blind_since = now
                log.warning("sentinel.blind", sentinel=fleet.sentinel, to=fleet.blind_to, nodes=len(self.watches))
            elif blind_since and not fleet.blind_to:
                log.info("sentinel.sees_again", sentinel=fleet.sentinel, after_s=round(now - blind_since, 1))
                blind_since = 0.0

    def _start(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
