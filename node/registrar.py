"""Keeps the node's entry in the registry true, through Redis going away and coming back empty."""

import asyncio
import time
from collections.abc import Callable, Mapping

import structlog

from recovery import registry
from recovery.errors import StaleEpoch, StoreUnavailable, UnknownNode
from recovery.registry import Node, NodeState
from recovery.store import Store

_CHECK_S = 2.0
_RETRY_S = 0.25
_RETRY_MAX_S = 2.0

log = structlog.get_logger()

Fields = Mapping[str, str | int | float | bool]


class Registrar:
    """Writes what `describe` returns (epoch, fields) whenever told to, until it is written."""

    def __init__(
        self,
        store: Store,
        node: str,
        describe: Callable[[], tuple[int, Fields]],
        on_forgotten: Callable[[], None],
    ) -> None:
        self._store = store
        self._node = node
        self._describe = describe
        self._on_forgotten = on_forgotten
        self._due = asyncio.Event()
        self._written = asyncio.Event()
        self._away = False
        self._known = False
        self._lost = False
        self._behind = False
        """Whether the last look found the entry behind our epoch: once may be our own haste, twice is a loss."""

    def announce(self) -> None:
        """Have the entry written, now or as soon as Redis is back."""
        self._written.clear()
        self._due.set()

    async def settled(self, timeout: float) -> bool:
        """Wait until what was announced is written; False when that takes longer."""
        try:
            await asyncio.wait_for(self._written.wait(), timeout)
        except TimeoutError:
            return False
        return True

    async def run(self) -> None:
        """Write what is due, and every 2 s look whether Redis still knows the node; until cancelled."""
        pause = _RETRY_S
        while True:
            try:
                if self._due.is_set():
                    await self._write()
                elif self._known:
                    await self._check()
                self._away, pause = False, _RETRY_S
            except (StoreUnavailable, StaleEpoch) as error:
                if not self._away:
                    log.warning("registry.not_written", node=self._node, error=str(error))
                self._away = True
                await asyncio.sleep(pause)
                pause = min(2 * pause, _RETRY_MAX_S) if isinstance(error, StoreUnavailable) else _RETRY_S
                continue
            await self._wait_for_work()

    async def _wait_for_work(self) -> None:
        try:
            await asyncio.wait_for(self._due.wait(), _CHECK_S)
        except TimeoutError:
            return

    async def _write(self) -> None:
        self._due.clear()
        began = time.monotonic()
        try:
            entry = await self._entry()
            if self._known and entry is None:
                self._forgotten()
            epoch, fields = self._describe()
            # Redis may have come back empty, or as it was an epoch ago: the sentinel goes on from STARTING.
            known = entry is not None and entry.epoch >= epoch
            fresh: Fields = {} if known else {"state": NodeState.STARTING.value, "weight": 0.0}
            await registry.register(self._store, self._node, epoch, {**fields, **fresh})
        except BaseException:
            self._due.set()
            raise
        self._known, self._lost, self._behind = True, False, False
        if not self._due.is_set():
            self._written.set()
        log.info("node.registered", node=self._node, epoch=epoch, ms=round((time.monotonic() - began) * 1_000))

    async def _check(self) -> None:
        entry, (epoch, _) = await self._entry(), self._describe()
        # Epochs come from Redis alone: an entry of an older one means that its last writes were lost, jobs included.
        before, self._behind = self._behind, entry is not None and entry.epoch < epoch
        if entry is None or (before and self._behind):
            self._forgotten()
            self.announce()

    def _forgotten(self) -> None:
        """Told again with every try until the entry is written: the node may have been busy the first time."""
        if not self._lost:
            log.warning("registry.forgotten", node=self._node, hint="Redis lost what it knew of this node")
        self._lost = True
        self._on_forgotten()

    async def _entry(self) -> Node | None:
        try:
            return await registry.get(self._store, self._node)
        except UnknownNode:
            return None
