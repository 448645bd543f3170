"""The sentinel process: finds the nodes, watches each, listens to gateways and leases (requirements A1, B, D3)."""

import asyncio
import secrets
import socket
import time
from collections.abc import Coroutine
from typing import Any

import aiohttp
import structlog

from detectors import leasewatch
from detectors.evidence import LeaseExpired, LeaseHeld, UpstreamBroken
from detectors.fleet import Fleet
from detectors.rules import Rules
from detectors.watch import Watch
from recovery import events, registry
from recovery.auth import read_token
from recovery.config import Settings
from recovery.errors import StoreUnavailable, UnknownNode
from recovery.stopping import stop_tasks
from recovery.store import connect

_DISCOVER_S = 1.0
_RETRY_S = 0.3
_SLEPT_S = 1.0


log = structlog.get_logger()


async def run(settings: Settings, stop: asyncio.Event) -> int:
    """Watch all nodes until `stop` is set; return the exit code. Raises SettingsError, StoreUnsafe."""
    token = read_token(settings.auth.agent_token_file)
    store = connect(settings.redis)
    session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True, limit=0))
    name = f"{socket.gethostname()}-{secrets.token_hex(3)}"
    try:
        try:
            await store.check()
        except StoreUnavailable as error:
            log.warning("sentinel.waits_for_redis", error=str(error))
        fleet = Fleet(settings, Rules.of(settings), store, session, token, name)
        return await Sentinel(fleet).run(stop)
    finally:
        await session.close()
        await store.aclose()


class Sentinel:
    """All watches, and what feeds them from Redis."""

    def __init__(self, fleet: Fleet) -> None:
        self.watches: dict[str, Watch] = {}
        self.sleeps = 0
        """How often this process itself slept or was blocked for a second or more."""
        self._fleet = fleet
        self._leases = leasewatch.LeaseWatch(fleet.settings.lease.lease_timeout_ms / 1e3)
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self, stop: asyncio.Event) -> int:
        """Run until `stop` is set."""
        log.info("sentinel.started", sentinel=self._fleet.sentinel)
        parts = (self._discover, self._listen, self._watch_leases, self._watch_self)
        core = {self._start(part(), part.__name__) for part in parts}
        stopped = asyncio.create_task(stop.wait())
        try:
            done, _ = await asyncio.wait({stopped, *core}, return_when=asyncio.FIRST_COMPLETED)
            for task in done - {stopped}:
                task.result()
        finally:
            await stop_tasks(stopped, *self._tasks)
            log.info("sentinel.stopped", sentinel=self._fleet.sentinel)
        return 0

    # ---- from Redis -------------------------------------------------------------------------------------------

    async def _discover(self) -> None:
        while True:
            try:
                for node in await registry.all_nodes(self._fleet.store):
                    self._observe(node)
            except StoreUnavailable:
                await asyncio.sleep(_RETRY_S)
            await asyncio.sleep(_DISCOVER_S)

    async def _listen(self) -> None:
        after = ""
        while True:
            try:
                after = after or await events.last_id(self._fleet.store)
                async with self._fleet.store.reader() as reader:
                    while True:
                        # A stopped Redis closes nothing, and this client has no deadline of its own.
                        async with asyncio.timeout(3.0):
                            news = await events.read(reader, after)
                        for event in news:
                            after = event.id
                            await self._hear(event)
            except (StoreUnavailable, TimeoutError):
                await asyncio.sleep(_RETRY_S)

    async def _hear(self, event: events.Event) -> None:
        watch = self.watches.get(event.node)
        if event.kind == events.Kind.UPSTREAM_BROKEN:
            if watch is not None and watch.judge.epoch == event.epoch:
                watch.take(UpstreamBroken(event.fields.get("evidence", "")))
        elif event.kind in (events.Kind.NODE_REGISTERED, events.Kind.NODE_STATE) and event.node:
            judge = watch.judge if watch else None
            if judge and (judge.epoch, judge.state) == (event.epoch, event.fields.get("state")):
                return  # our own
            try:
                self._observe(await registry.get(self._fleet.store, event.node))
            except UnknownNode:
                return

    async def _watch_leases(self) -> None:
        while True:
            await asyncio.sleep(leasewatch.POLL_S)
            try:
                readings = await leasewatch.read(self._fleet.store, list(self.watches))
            except StoreUnavailable as error:
                if not self._fleet.redis_away:
                    log.warning("sentinel.redis_away", error=str(error))
                self._leases.away = self._fleet.redis_away = True
                continue
            if self._fleet.redis_away:
                log.info("sentinel.redis_back")
                self._fleet.redis_away = False
            expired, held = self._leases.sort(readings, time.monotonic())
            for reading in held:
                self._tell_lease(reading, LeaseHeld())
            for reading in expired:
                self._tell_lease(reading, LeaseExpired())
                if self._leases.to_publish(reading):
                    await self._announce(reading)

    def _tell_lease(self, reading: leasewatch.Reading, evidence: LeaseExpired | LeaseHeld) -> None:
        watch = self.watches.get(reading.node)
        if watch is not None and watch.judge.epoch == reading.epoch:
            watch.take(evidence)

    async def _announce(self, reading: leasewatch.Reading) -> None:
        log.warning("sentinel.lease_expired", node=reading.node, epoch=reading.epoch)
        try:
            await events.publish(
                self._fleet.store,
                events.Kind.LEASE_EXPIRED,
                {"node": reading.node, "epoch": reading.epoch, "sentinel": self._fleet.sentinel},
            )
        except StoreUnavailable:
            self._leases.unpublished(reading)

    async def _watch_self(self) -> None:
        before = time.monotonic()
        while True:
            await asyncio.sleep(0.1)
            now = time.monotonic()
            if now - before > _SLEPT_S:
                self.sleeps += 1
                log.warning("sentinel.slept", seconds=round(now - before, 1), sleeps=self.sleeps)
            before = now

    # ---- watches ----------------------------------------------------------------------------------------------

    def _observe(self, node: registry.Node) -> None:
        if not node.agent or node.epoch == 0:
            return  # not there yet
        watch = self.watches.get(node.id)
        if watch is not None:
            watch.observe(node)
            return
        self.watches[node.id] = watch = Watch(self._fleet, node)
        log.info("sentinel.watches", node=node.id, epoch=node.epoch, state=node.state.value, agent=node.agent)
        self._start(self._keep(node.id, watch), f"watch {node.id}")

    async def _keep(self, node: str, watch: Watch) -> None:
        """Run a watch; one that breaks is dropped, and the next look at the registry makes a new one."""
        try:
            await watch.run()
        except Exception:  # one node's trouble must not cost the others their watch
            log.exception("sentinel.watch_broke", node=node)
        finally:
            self.watches.pop(node, None)

    def _start(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
