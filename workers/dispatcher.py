"""The dispatcher: reads the events stream as a consumer group and turns deaths into jobs; runs the reconciler.

Events are acknowledged when their job stands in Redis; whatever fails is delivered again, five times at most.
"""

import asyncio
import socket
import time
from dataclasses import dataclass, field
from typing import Any

import redis.exceptions
import structlog

from recovery import events, jobs
from recovery.config import Settings
from recovery.errors import StoreUnavailable, UnbrokenError, UnknownJob
from recovery.events import Event, Kind
from recovery.jobs import Job
from recovery.stopping import stop_tasks, within
from recovery.store import EVENTS, PREFIX, Store, available, connect
from workers.nudge import Nudger
from workers.reconciler import TICK_S, Reconciler

log = structlog.get_logger()

GROUP = "dispatcher"
DEAD_LETTERS = PREFIX + "events:dead"
_BLOCK_MS = 500
_BATCH = 100
_CLAIM_IDLE_MS = 2_000
_CLAIM_EVERY_S = 1.0
_DELIVERIES = 5
_PAUSE_S = 0.2
_PAUSE_MAX_S = 1.0


async def run(settings: Settings, stop: asyncio.Event) -> int:
    """Dispatch until `stop` is set; return the exit code. Survives Redis away, restarted or emptied.

    Raises StoreUnsafe when Redis may evict our state.
    """
    # Celery's settings are read at import, which belongs to the processes that need them.
    from workers.app import app

    store = connect(settings.redis)
    nudger = Nudger(app)
    try:
        await _check(store)
        await nudger.warm()
        dispatcher = Dispatcher(store, nudger, Reconciler(store, nudger))
        await _until_stopped(dispatcher, stop)
    finally:
        nudger.close()
        await store.aclose()
    log.info("dispatcher.stopped")
    return 0


@dataclass(slots=True)
class Dispatcher:
    """Reads events and acts on them."""

    store: Store
    nudger: Nudger
    reconciler: Reconciler
    consumer: str = field(default_factory=socket.gethostname)
    _claim_at: float = 0.0
    _ready: bool = False

    async def consume(self) -> None:
        """Read and handle events for ever, opening a new connection after every failure."""
        pause = _PAUSE_S
        while True:
            try:
                async with self.store.reader() as reader:
                    await self._ensure_group()
                    await self._handle_pending()
                    if not self._ready:
                        log.info("dispatcher.ready")
                        self._ready = True
                    pause = _PAUSE_S
                    await self._follow(reader)
            except (StoreUnavailable, TimeoutError) as error:
                log.warning("dispatcher.store_away", error=str(error) or repr(error))
            except redis.exceptions.ResponseError as error:
                # NOGROUP: Redis came back empty; the group is made anew.
                log.warning("dispatcher.group_lost", error=str(error))
            await asyncio.sleep(pause)
            pause = min(pause * 2, _PAUSE_MAX_S)

    async def reconcile(self) -> None:
        """Run the reconciler for ever; a record nobody can read must not cost the other jobs their dispatcher."""
        while True:
            try:
                await self.reconciler.tick()
            except Exception:
                log.exception("reconciler.failed")
            await asyncio.sleep(TICK_S)

    async def handle(self, event: Event) -> None:
        """Act on one event. Raises StoreUnavailable."""
        if event.kind == Kind.NODE_DEAD:
            await self._on_death(event)
        elif event.kind == Kind.JOB_STATE and event.fields.get("state") == jobs.JobState.QUEUED:
            try:
                job = await jobs.get(self.store, event.fields["job"])
            except UnknownJob:
                return
            await self._start(job)

    async def _on_death(self, event: Event) -> None:
        if await self._own_try(event):
            log.info("dispatcher.own_try_died", node=event.node, epoch=event.epoch)
            return
        job, created = await jobs.create(
            self.store, event.node, event.epoch, cause=event.fields.get("cause", ""),
            evidence=event.fields.get("evidence", ""), started_by="sentinel",
        )  # fmt: skip
        if created:
            log.info("job.created", job=job.id, node=job.node, epoch=job.epoch, cause=job.cause)
        await self._start(job)

    async def _own_try(self, event: Event) -> bool:
        """Whether what died is the engine that the node's live job is just starting: its step deals with that."""
        try:
            job = await jobs.get(self.store, jobs.job_id(event.node, event.epoch - 1))
        except UnknownJob:
            return False
        return job.state in jobs.LIVE and job.new_epoch == event.epoch and not job.steps["restart"].done

    async def _start(self, job: Job) -> None:
        first = job.plan[0]
        if job.state is not jobs.JobState.QUEUED or job.steps[first.name].attempts or self.reconciler.knows(job, first):
            return
        self.reconciler.note_sent(job, first.name)
        await self.nudger.send(job, first)

    async def _ensure_group(self) -> None:
        try:
            with available():
                await self.store.redis.xgroup_create(EVENTS, GROUP, id="0", mkstream=True)
        except redis.exceptions.ResponseError as error:
            if "BUSYGROUP" not in str(error):
                raise

    async def _handle_pending(self) -> None:
        """Handle what an earlier life of this consumer took and did not finish."""
        after = "0"
        while True:
            with available():
                reply = await self.store.redis.xreadgroup(GROUP, self.consumer, {EVENTS: after}, count=_BATCH)
            entries = _entries(reply)
            if not entries:
                return
            await self._handle_all(entries)
            after = entries[-1][0]

    async def _follow(self, reader: Any) -> None:
        while True:
            if time.monotonic() >= self._claim_at:
                self._claim_at = time.monotonic() + _CLAIM_EVERY_S
                await self._claim()
            with available():
                reply = await within(
                    _BLOCK_MS / 1_000 + 2.0,
                    reader.xreadgroup(GROUP, self.consumer, {EVENTS: ">"}, count=_BATCH, block=_BLOCK_MS),
                )
            await self._handle_all(_entries(reply))

    async def _claim(self) -> None:
        """Take over what nobody finished; bury what was delivered too often."""
        with available():
            reply = await self.store.redis.xautoclaim(
                EVENTS, GROUP, self.consumer, min_idle_time=_CLAIM_IDLE_MS, start_id="0-0", count=_BATCH
            )
        entries = reply[1]
        if not entries:
            return
        with available():
            pending = await self.store.redis.xpending_range(
                EVENTS, GROUP, min=entries[0][0], max=entries[-1][0], count=_BATCH, consumername=self.consumer
            )
        often = {row["message_id"] for row in pending if row["times_delivered"] > _DELIVERIES}
        for entry_id, fields in entries:
            if entry_id in often:
                await self._bury(entry_id, fields or {})
        await self._handle_all([entry for entry in entries if entry[0] not in often])

    async def _bury(self, entry_id: str, fields: dict[str, str]) -> None:
        with available():
            await self.store.redis.xadd(DEAD_LETTERS, {"event_id": entry_id, **fields}, maxlen=1_000, approximate=True)
            await self.store.redis.xack(EVENTS, GROUP, entry_id)
        log.error("dispatcher.dead_letter", event_id=entry_id, kind=fields.get("kind", ""))

    async def _handle_all(self, entries: list[Any]) -> None:
        done = [entry_id for entry_id, fields in entries if fields is None]  # trimmed while pending
        for event in events.parse(entries):
            try:
                await self.handle(event)
            except StoreUnavailable:
                raise
            except (UnbrokenError, ValueError, KeyError, redis.exceptions.RedisError) as error:
                log.exception("dispatcher.event_failed", event_id=event.id, kind=event.kind, error=repr(error))
            else:
                done.append(event.id)
        if done:
            with available():
                await self.store.redis.xack(EVENTS, GROUP, *done)


def _entries(reply: Any) -> list[Any]:
    """Return the entries of the one stream in an XREADGROUP reply, of either protocol version."""
    for _name, entries in reply.items() if isinstance(reply, dict) else reply or []:
        return list(entries)
    return []


async def _check(store: Store) -> None:
    try:
        await store.check()
    except StoreUnavailable as error:
        log.warning("dispatcher.store_away", error=str(error))


async def _until_stopped(dispatcher: Dispatcher, stop: asyncio.Event) -> None:
    waiter: asyncio.Task[Any] = asyncio.create_task(stop.wait())
    work: list[asyncio.Task[Any]] = [
        asyncio.create_task(dispatcher.consume()),
        asyncio.create_task(dispatcher.reconcile()),
    ]
    try:
        await asyncio.wait({waiter, *work}, return_when=asyncio.FIRST_COMPLETED)
        for task in work:
            if task.done():
                task.result()
    finally:
        await stop_tasks(waiter, *work)
