"""The journal's writer: keeps each stream's entry in Redis up to date from the background, and never hurts a stream."""

import asyncio
import time
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

import structlog

from api.metrics import Metrics
from recovery import events, journal
from recovery.config import RequestSettings
from recovery.errors import StoreUnavailable
from recovery.store import Store

log = structlog.get_logger()

_OPEN_WAIT_S = 0.1
"""How long a request waits for its entry to be written before it goes on without."""
_MIN_PAUSE_S = 0.02
_AWAY_S = 1.0
"""Pause after Redis did not answer."""
_MAX_CLOSES = 10_000
_MAX_TASKS = 256


@dataclass(slots=True, eq=False)
class Record:
    """One stream's journal entry as this gateway knows it; `ids` is the stream's own growing list."""

    request: str
    model: str
    identity: str
    prompt_ids: list[int]
    max_tokens: int
    sampling: dict[str, Any]
    ids: list[int]
    node: str = ""
    epoch: int = 0
    attempt: int = 0
    written: int = 0
    """Delivered ids in Redis."""
    head_written: bool = False
    nodes: set[str] = field(default_factory=set)
    """All nodes it ran on."""


class JournalWriter:
    """One background task per gateway writes all records; `run` is that task."""

    def __init__(self, store: Store, gateway: str, settings: RequestSettings, metrics: Metrics) -> None:
        self._store = store
        self._gateway = gateway
        self._settings = settings
        self._metrics = metrics
        self._records: dict[str, Record] = {}
        self._closes: list[Record] = []
        self._tasks: set[asyncio.Task[Any]] = set()
        self._wake = asyncio.Event()
        self._away_until = 0.0
        self._evidence_at: dict[tuple[str, int], float] = {}

    async def open(self, record: Record) -> None:
        """Write a record's head before its first attempt, waiting no longer than is bearable without it."""
        self._records[record.request] = record
        if time.monotonic() >= self._away_until:
            task = self._own(self._write_head(record))
            if task is not None:
                await asyncio.wait([task], timeout=_OPEN_WAIT_S)

    def moved(self, record: Record, node: str, epoch: int, attempt: int, *, in_store: bool) -> None:
        """Note a new attempt; when Redis did not learn of it by the assignment itself, it is told later."""
        record.node, record.epoch, record.attempt = node, epoch, attempt
        record.nodes.add(node)
        if not in_store:
            record.head_written = False

    def grown(self, record: Record) -> None:
        """Note that a record has ids to write (called once per read of an engine: must stay cheap)."""
        if len(record.ids) - record.written >= self._settings.journal_every_tokens:
            self._wake.set()

    def close(self, record: Record) -> None:
        """Forget a request that has ended, soon."""
        self._records.pop(record.request, None)
        if len(self._closes) < _MAX_CLOSES:  # beyond that the time to live clears up
            self._closes.append(record)
            self._wake.set()

    async def assign(self, record: Record, node: str, epoch: int, timeout: float) -> journal.Assignment | None:
        """Compete for the record's next attempt; None when Redis cannot say who won within ``timeout`` s."""
        if time.monotonic() < self._away_until:
            return None
        attempt = record.attempt
        task = self._own(journal.assign(self._store, record.request, attempt, node, epoch, f"gateway:{self._gateway}"))
        if task is None:
            return None
        done, _ = await asyncio.wait([task], timeout=timeout)
        if not done:
            return None
        try:
            standing: journal.Assignment | None = task.result()[1]
        except StoreUnavailable:
            self._failed()
            return None
        return standing

    def evidence(self, node: str, epoch: int, request: str, evidence: str) -> None:
        """Tell everybody that an upstream broke, at most once a second for each (node, epoch)."""
        now = time.monotonic()
        if now - self._evidence_at.get((node, epoch), -1e9) < 1.0:
            return
        if len(self._evidence_at) > 1_000:
            self._evidence_at.clear()
        self._evidence_at[node, epoch] = now
        fields: dict[str, str | int | float] = {
            "node": node, "epoch": epoch, "evidence": evidence, "gateway": self._gateway, "request": request,
        }  # fmt: skip
        self._own(events.publish(self._store, events.Kind.UPSTREAM_BROKEN, fields))

    async def run(self) -> None:
        """Write what has changed, every `journal_every_ms` or as soon as enough tokens are there, until cancelled."""
        while True:
            try:
                async with asyncio.timeout(self._settings.journal_every_ms / 1_000):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()
            await self.flush()
            away = self._away_until - time.monotonic()
            await asyncio.sleep(max(_MIN_PAUSE_S, away))

    async def flush(self) -> None:
        """Write everything that is due now, until it is done or Redis fails."""
        try:
            while self._closes:
                # Taken out first: others end, and are put at the list's end, while this one is written.
                record = self._closes.pop()
                try:
                    await journal.close_entry(self._store, record.request, sorted(record.nodes))
                except BaseException:
                    self._closes.append(record)
                    raise
            for record in list(self._records.values()):
                if record.request not in self._records:
                    continue  # closed meanwhile
                if not record.head_written and record.node:
                    await self._put_head(record)
                if len(record.ids) > record.written:
                    await self._put_ids(record)
        except StoreUnavailable:
            self._failed()

    async def aclose(self) -> None:
        """Write the last closes and end what is under way."""
        if self._closes:
            await self.flush()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _write_head(self, record: Record) -> None:
        try:
            await self._put_head(record)
        except StoreUnavailable:
            self._failed()

    async def _put_head(self, record: Record) -> None:
        ttl = self._settings.journal_ttl_s
        attempt = record.attempt
        entry = journal.Entry(
            request=record.request,
            gateway=self._gateway,
            attempt=attempt,
            node=record.node,
            epoch=record.epoch,
            prompt_tokens=len(record.prompt_ids),
            max_tokens=record.max_tokens,
            delivered=record.written,
            identity=record.identity,
            model=record.model,
        )
        await journal.open_entry(self._store, entry, record.prompt_ids, record.sampling, ttl)
        if record.request not in self._records:  # ended while it was being written
            self._closes.append(record)
        record.head_written = record.attempt == attempt

    async def _put_ids(self, record: Record) -> None:
        ids = record.ids[record.written :]
        await journal.record(self._store, record.request, record.written, ids, self._settings.journal_ttl_s)
        record.written += len(ids)

    def _failed(self) -> None:
        self._metrics.journal_failures.inc()
        self._away_until = time.monotonic() + _AWAY_S

    def _own(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any] | None:
        if len(self._tasks) >= _MAX_TASKS:
            work.close()
            return None
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and isinstance(task.exception(), StoreUnavailable):
            log.debug("journal.store_away")
