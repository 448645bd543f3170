"""The routing table: this gateway's own picture of the nodes, good enough to route by when Redis is away.

Read from the registry each second and corrected at once by the events stream and by what the gateway
itself sees of its engines.
"""

import asyncio
import random
import time
from collections.abc import Collection, Generator, Iterable
from contextlib import contextmanager, suppress
from dataclasses import replace

import aiohttp
import structlog

import engines
from api.doubts import SUSPECT_S, Doubts
from api.pulses import Pulses
from api.tether import Tether
from engines.base import Engine
from recovery import events, policy, registry
from recovery.config import Settings
from recovery.errors import StoreUnavailable
from recovery.registry import Node, NodeState
from recovery.store import Store

log = structlog.get_logger()

REFRESH_S = 1.0
_REFRESH_PAUSE_S = 0.02
"""Least pause between two reads of the registry: many nodes may change at once."""
_VERDICT_S = 2.0
"""Age at which a `node.dead` event is older than any registry read that could contradict it."""
_LEAVING = frozenset({NodeState.STOPPED, NodeState.DRAINING})
_READ_MARGIN_S = 2.0
"""Beyond its block time, when a blocking read counts as hung."""


class RoutingTable:
    """Nodes, their weights as of now, and which requests are tied to which of them."""

    def __init__(self, settings: Settings, store: Store, session: aiohttp.ClientSession) -> None:
        self.nodes: dict[str, Node] = {}
        self.loaded = False
        """Whether the registry was ever read."""
        self.pulses = Pulses(settings.probe.stall_ms / 1_000, settings.probe.stall_factor)
        self._settings = settings
        self._store = store
        self._session = session
        self._engines: dict[str, Engine] = {}
        self._tethers: dict[str, set[Tether]] = {}
        self._dead: dict[str, tuple[int, float]] = {}
        self._told: dict[str, tuple[int, float, NodeState, float]] = {}
        """Epoch, time, state and weight of each node's last event: newer than a read that began before it."""
        self._read_at = 0.0
        self._outdated = asyncio.Event()
        self._doubts = Doubts()
        self._parked: set[asyncio.Event] = set()

    # What requests ask

    def choose(self, model: str, avoid: Collection[str] = ()) -> Node | None:
        """Choose a node for a new request (requirements B4), or None when there is none now."""
        return policy.choose(
            self.usable(model),
            model,
            inflight=self.inflight(),
            draws=(random.random(), random.random(), random.random()),  # noqa: S311 - shares of traffic, no secret
            min_free=self._settings.routing.min_free,
            memory_weight=self._settings.routing.memory_weight,
            policy=self._settings.routing.policy,
            avoid=frozenset(avoid),
        )

    def usable(self, model: str) -> list[Node]:
        """Return the model's nodes this gateway has nothing against."""
        now = time.monotonic()
        limit = self._settings.limits.connections_per_node
        return [
            node
            for node in self.nodes.values()
            if node.model == model
            and not self._doubts.suspected((node.id, node.epoch), now)
            and len(self._tethers.get(node.id, ())) < limit
        ]

    def named(self, model: str) -> list[Node]:
        """Return every node registered for the model, whatever its state."""
        return [node for node in self.nodes.values() if node.model == model]

    def models(self) -> list[str]:
        """Return the names of all models registered."""
        return sorted({node.model for node in self.nodes.values() if node.model})

    def inflight(self) -> dict[str, int]:
        """Return this gateway's running requests per node."""
        return {node: len(tethers) for node, tethers in self._tethers.items() if tethers}

    def open_to(self, node: Node) -> bool:
        """Whether a request may still be sent to a node chosen a while ago: it may have died, left or begun anew."""
        current = self.nodes.get(node.id)
        return current is not None and current.epoch == node.epoch and policy.takes_requests(current)

    def leaves(self, node: Node) -> bool:
        """Whether a node goes in good order: that its streams break then tells nothing of it, or of them."""
        current = self.nodes.get(node.id)
        return current is not None and current.epoch == node.epoch and current.state in _LEAVING

    def engine(self, node: Node) -> Engine:
        """Return the adapter that speaks to the node's engine."""
        engine = self._engines.get(node.engine_url)
        if engine is None:
            engine = engines.connect(node.kind, node.engine_url, self._session)
            self._engines[node.engine_url] = engine
        return engine

    @contextmanager
    def tied(self, node: Node) -> Generator[Tether]:
        """Tie a request to (node, epoch) for as long as it uses its engine."""
        tether = Tether(node)
        current = self.nodes.get(node.id)
        if current is not None and (current.epoch > node.epoch or self._is_dead(current)):
            tether.cut("dead")
        tethers = self._tethers.setdefault(node.id, set())
        tethers.add(tether)
        try:
            with self.pulses.felt(tether):
                yield tether
        finally:
            tethers.discard(tether)
            self._wake()

    @contextmanager
    def parked(self, wake: asyncio.Event) -> Generator[None]:
        """Have ``wake`` set at every change of the picture."""
        self._parked.add(wake)
        try:
            yield
        finally:
            self._parked.discard(wake)

    # What changes the picture

    def suspect(self, node: Node) -> None:
        """Note that this gateway saw the node refuse or break: others' next requests avoid it for a while."""
        self._doubts.suspect((node.id, node.epoch), time.monotonic())
        # Whoever is parked must look again when the suspicion ends: nothing else may happen then.
        asyncio.get_running_loop().call_later(SUSPECT_S + 0.01, self._wake)

    def blame(self, node: Node) -> bool:
        """Note that a node failed a request which another one then served; True when it has done so too often."""
        guilty = self._doubts.failed((node.id, node.epoch))
        if guilty:
            self.suspect(node)
        return guilty

    def served(self, node: Node) -> None:
        """Note that a node has begun an answer."""
        self._doubts.served((node.id, node.epoch))

    def apply(self, event: events.Event) -> bool:
        """Take an event in; True when the registry should be read anew at once."""
        if event.kind == events.Kind.NODE_DEAD:
            self._bury(event.node, event.epoch, event.fields.get("cause", "dead"))
            return False
        if event.kind == events.Kind.NODE_STATE:
            return self._restate(event)
        return event.kind == events.Kind.NODE_REGISTERED

    def take(self, nodes: Iterable[Node], read_at: float) -> None:
        """Take a registry read that began at monotonic time ``read_at``; one overtaken by a later read is dropped."""
        if read_at < self._read_at:
            return
        self._read_at = read_at
        fresh = {node.id: self._as_told(node, read_at) for node in nodes}
        for name, (epoch, since) in list(self._dead.items()):
            current = fresh.get(name)
            if current is None or current.epoch > epoch or since + _VERDICT_S < read_at:
                del self._dead[name]
        self.nodes = {
            node.id: replace(node, weight=0.0, state=NodeState.DEAD) if self._is_dead(node) else node
            for node in fresh.values()
        }
        self.loaded = True
        urls = {node.engine_url for node in self.nodes.values()}
        self._engines = {url: engine for url, engine in self._engines.items() if url in urls}
        known = {(node.id, node.epoch) for node in self.nodes.values()}
        self._doubts.keep(known)
        self.pulses.keep(known)
        for node in self.nodes.values():
            self._cut(node.id, node.epoch - 1, "fenced")
        self._wake()

    async def refresh(self) -> None:
        """Read the registry now. Raises StoreUnavailable; the last picture then stays."""
        began = time.monotonic()
        self.take(await registry.all_nodes(self._store), began)

    async def keep_fresh(self) -> None:
        """Refresh each second, and soon after an event that asks for it, until cancelled."""
        while True:
            self._outdated.clear()
            try:
                await self.refresh()
            except StoreUnavailable:
                log.debug("routing.registry_away")
            except (ValueError, KeyError):
                log.exception("routing.registry_unreadable")
            await asyncio.sleep(_REFRESH_PAUSE_S)
            with suppress(TimeoutError):
                async with asyncio.timeout(REFRESH_S):
                    await self._outdated.wait()

    async def follow_events(self) -> None:
        """Follow the events stream until cancelled, through any absence of Redis."""
        after = ""
        while True:
            try:
                async with self._store.reader() as reader:
                    after = after or await events.last_id(self._store)
                    self._outdated.set()  # what happened before is in the registry only
                    while True:
                        async with asyncio.timeout(0.5 + _READ_MARGIN_S):
                            read = await events.read(reader, after)
                        after = read[-1].id if read else after
                        # The registry is read by somebody else: the next event, a death perhaps, must not wait for it.
                        for event in read:
                            if self._try(event):
                                self._outdated.set()
            except (StoreUnavailable, TimeoutError):
                await asyncio.sleep(0.2)

    def _try(self, event: events.Event) -> bool:
        try:
            return self.apply(event)
        except (ValueError, KeyError):
            log.exception("routing.event_unreadable", event_id=event.id, kind=event.kind)
            return True

    def _bury(self, node: str, epoch: int, cause: str) -> None:
        current = self.nodes.get(node)
        if current is not None and current.epoch > epoch:
            self._cut(node, epoch, cause)
            return
        self._dead[node] = (epoch, time.monotonic())
        if current is not None:
            self.nodes[node] = replace(current, weight=0.0, state=NodeState.DEAD)
        self._cut(node, epoch, cause)
        self._wake()
        # The clock is common to all processes of a machine: whoever measures detection reads it here.
        log.info("routing.node_out", node=node, epoch=epoch, cause=cause, monotonic_ns=time.monotonic_ns())

    def _restate(self, event: events.Event) -> bool:
        current = self.nodes.get(event.node)
        if current is None:
            return True
        if event.epoch < current.epoch:
            return False
        state, weight = NodeState(event.fields["state"]), float(event.fields.get("weight", 0))
        dead = self._dead.get(event.node)
        if dead is not None and dead[0] <= event.epoch and state is NodeState.ALIVE:
            del self._dead[event.node]  # whoever buried it has taken it back
        if event.epoch > current.epoch or self._is_dead(current):
            return True
        self._told[event.node] = (event.epoch, time.monotonic(), state, weight)
        self.nodes[event.node] = replace(current, state=state, weight=weight)
        self._wake()
        return state is not current.state

    def _as_told(self, node: Node, read_at: float) -> Node:
        told = self._told.get(node.id)
        if told is None:
            return node
        epoch, at, state, weight = told
        if at < read_at or epoch != node.epoch:
            del self._told[node.id]
            return node
        return replace(node, state=state, weight=weight)

    def _is_dead(self, node: Node) -> bool:
        dead = self._dead.get(node.id)
        return dead is not None and node.epoch <= dead[0]

    def _cut(self, node: str, epoch: int, cause: str) -> None:
        for tether in self._tethers.get(node, ()):
            if tether.node.epoch <= epoch:
                tether.cut(cause)

    def _wake(self) -> None:
        for wake in self._parked:
            wake.set()
