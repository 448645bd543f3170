"""One node's engine and everything that may be done to it: launch, adopt, fence, reclaim, warm up, end.

Each command checks the epoch first; the highest one seen is on disk before anything is done under it.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import aiohttp
import structlog

import engines
from engines.base import Engine, EngineError
from node import processes
from node.deathwatch import DeathWatch
from node.launcher import Launched, Launcher, StartFailed
from node.lease import LeaseKeeper
from node.mark import Mark
from node.notices import Notices
from node.progress import ProgressLog
from node.reclaim import Ended, end_all, find
from node.running import Running
from node.state import NodeDir, Record
from protocol import unbroken_pb2 as pb
from recovery.config import Settings
from recovery.errors import StaleEpoch, UnbrokenError

_KILL_DEADLINE_S = 10.0
_ADOPT_TRIES = 3
_FENCED_GRACE_S = 0.5
"""TERM's grace for an engine already fenced: nobody waits for its answers any more."""

log = structlog.get_logger()


class OldEngineRuns(UnbrokenError):
    """An engine of an older epoch still runs: reclaim it first."""


class NotServing(UnbrokenError):
    """No engine serves under this epoch."""


class WarmUpFailed(UnbrokenError):
    """The engine serves but could not generate."""


@dataclass(frozen=True, slots=True)
class Reclaimed:
    """Outcome of a reclaim."""

    pids: tuple[int, ...]
    left: tuple[int, ...]


class Host:
    """The node's engine. Methods that wait must run one after another (`node.once`)."""

    def __init__(
        self,
        settings: Settings,
        home: NodeDir,
        lease: LeaseKeeper,
        notices: Notices,
        session: aiohttp.ClientSession,
        changed: Callable[[], None],
    ) -> None:
        self.node = settings.node.id
        self.phase = pb.PHASE_EMPTY
        self.detail = ""
        self.engine: Running | None = None
        self.launcher = Launcher(settings.node, home)
        self._settings = settings
        self._home = home
        self._lease = lease
        self._notices = notices
        self._session = session
        self._changed = changed
        self._cutting: asyncio.Task[None] | None = None
        self._ended: set[int] = set()
        self._warm: tuple[Record, int, int] | None = None

    @property
    def epoch(self) -> int:
        """The highest epoch seen."""
        return self._home.floor

    @property
    def serving(self) -> bool:
        """Whether an engine serves under the current epoch."""
        return self.engine is not None and self.engine.serving and self.engine.record.epoch == self.epoch

    def accept(self, epoch: int) -> None:
        """Take note of a command's epoch; a new one ends all claims of the old. Raises StaleEpoch."""
        if epoch < self.epoch:
            raise StaleEpoch(self.node, epoch, self.epoch)
        if epoch > self.epoch:
            self._home.raise_floor(epoch)
            self._lease.drop()
            self._ended = set()
            self.phase, self.detail = pb.PHASE_FENCED, ""

    def fence(self, epoch: int) -> None:
        """Refuse everything below `epoch` from now on and cut the old engine off. Raises StaleEpoch."""
        self.accept(epoch)
        engine = self.engine
        if engine is None or engine.record.epoch >= epoch:
            if self.phase in (pb.PHASE_EMPTY, pb.PHASE_DOWN, pb.PHASE_FAILED):
                self.phase = pb.PHASE_FENCED
            return
        engine.ending = True
        if self._cutting is None or self._cutting.done():
            self._cutting = asyncio.create_task(self._cut_off(engine), name="cut off")

    def wait_for_commands(self, epoch: int) -> None:
        """Take no action of our own: a recovery job is at work on this node. Raises StaleEpoch."""
        self.accept(epoch)
        if not self.serving:
            self.phase = pb.PHASE_FENCED

    async def reclaim(self, epoch: int) -> Reclaimed:
        """End every engine process of an older epoch and prove it gone. Raises StaleEpoch.

        Returns all pids ended since the fence; `left` names those that would not die in time.
        """
        self.accept(epoch)
        await self._cut()
        if not self.serving:
            self.phase = pb.PHASE_RECLAIMING
        try:
            ended = await self._end_older(epoch, _FENCED_GRACE_S)
        finally:
            if self.phase == pb.PHASE_RECLAIMING:
                self.phase = pb.PHASE_FENCED
        log.info("engine.reclaimed", node=self.node, epoch=epoch, pids=list(ended.pids), left=list(ended.left))
        return Reclaimed(tuple(sorted(self._ended)), ended.left)

    async def start(self, epoch: int) -> Record:
        """Launch an engine under `epoch` and wait until it serves; at once when it does already.

        Raises StaleEpoch, LeaseHeld, OldEngineRuns, StartFailed.
        """
        self.accept(epoch)
        if self.serving and self.engine is not None:
            return self.engine.record
        await self._cut()
        older = await asyncio.to_thread(self._search, self._home.engine, epoch)
        if older:
            pids = ", ".join(str(one.pid) for one in sorted(older, key=lambda one: one.pid))
            raise OldEngineRuns(f"node {self.node}: processes of an older epoch still run (pid {pids}): reclaim first")
        try:
            await self._lease.take(epoch)
        except StaleEpoch as error:
            self.accept(error.current)
            raise
        self.phase, self.detail = pb.PHASE_STARTING, ""
        try:
            return await self._launch(epoch)
        except StartFailed as error:
            self.fail(epoch, str(error))
            raise
        finally:
            if not self.serving:
                await self._discard()

    async def adopt(self, record: Record) -> bool:
        """Take over an engine launched by an earlier agent of this node, if it lives and answers."""
        engine = Running(Launched(record, None), self._connect(record.url), ProgressLog(time.monotonic()))
        for _ in range(_ADOPT_TRIES):  # busy engines answer late
            if not processes.alive(record.identity) or processes.stopped(record.identity):
                break
            engine.capabilities = await engine.ask_capabilities()
            if engine.capabilities is not None:
                break
        if engine.capabilities is None:
            log.warning("engine.not_adopted", node=self.node, epoch=record.epoch, pid=record.pid)
            return False
        self.engine = engine
        self._watch(engine)
        self.phase = pb.PHASE_SERVING
        log.info("engine.adopted", node=self.node, epoch=record.epoch, pid=record.pid)
        return True

    async def warm_up(self, epoch: int) -> tuple[int, int]:
        """Run a few short generations; return tokens and ms. Raises StaleEpoch, NotServing, WarmUpFailed."""
        self.accept(epoch)
        engine = self.engine
        if engine is None or not self.serving:
            raise NotServing(f"node {self.node}: no engine serves under epoch {epoch}")
        if self._warm is None or self._warm[0] != engine.record:
            began = time.monotonic()
            try:
                tokens = await engine.generate_a_little()
            except (EngineError, TimeoutError) as error:
                message = f"node {self.node}: warm-up failed: {error or 'no answer in time'}"
                # An engine that cannot generate is none: whoever asks for one next gets another.
                engine.ending = True
                self.fail(epoch, message)
                await self._discard()
                raise WarmUpFailed(message) from error
            self._warm = (engine.record, tokens, round((time.monotonic() - began) * 1_000))
        return self._warm[1:]

    async def end(self) -> tuple[int, ...]:
        """End everything of ours in good order (TERM, grace, KILL); return pids that would not die."""
        await self._cut()
        return (await self._end_older(self.epoch + 1, self._settings.node.term_grace_s)).left

    def fail(self, epoch: int, detail: str) -> None:
        """Say why no engine serves, unless a newer epoch is being worked on."""
        log.error("engine.start_failed", node=self.node, epoch=epoch, error=detail)
        if epoch == self.epoch:
            self.phase, self.detail = pb.PHASE_FAILED, detail
            self._changed()

    async def _launch(self, epoch: int) -> Record:
        await self._discard()
        began = time.monotonic()
        launched = await self.launcher.launch(epoch)
        engine = Running(launched, self._connect(launched.record.url), ProgressLog(time.monotonic()))
        self.engine = engine
        self._watch(engine)
        log.info("engine.launched", node=self.node, epoch=epoch, pid=engine.record.pid)
        limit = self._settings.probe.start_deadline_s
        await engine.until_ready(limit, self.launcher.log.tail, lambda: self._not_fenced(epoch))
        record = replace(engine.record, restart_ms=round((time.monotonic() - began) * 1_000))
        engine.launched = replace(launched, record=record)
        self._home.record(record)
        self.phase, self.detail = pb.PHASE_SERVING, ""
        self._notices.send(pb.NOTICE_KIND_ENGINE_SERVING, epoch)
        self._changed()
        log.info("engine.started", node=self.node, epoch=epoch, pid=record.pid, url=record.url, ms=record.restart_ms)
        return record

    def _not_fenced(self, epoch: int) -> None:
        if epoch < self.epoch:
            raise StaleEpoch(self.node, epoch, self.epoch)

    def _watch(self, engine: Running) -> None:
        record = engine.record
        line = Path(record.lifeline) if record.lifeline and Path(record.lifeline).exists() else None
        engine.watch = DeathWatch(
            record.identity, line, engine.launched.child, lambda evidence: self._died(engine, evidence)
        )

    def _died(self, engine: Running, evidence: str) -> None:
        news = self.serving and engine is self.engine
        engine.dead = evidence
        if not news:
            return
        # First the notice: every millisecond here is a paused stream.
        self._notices.send(pb.NOTICE_KIND_ENGINE_DOWN, engine.record.epoch, "process_exit", evidence)
        self.phase, self.detail = pb.PHASE_DOWN, evidence
        log.error("engine.down", node=self.node, epoch=engine.record.epoch, evidence=evidence)

    async def _cut(self) -> None:
        if self._cutting is not None:
            await asyncio.gather(self._cutting, return_exceptions=True)

    async def _cut_off(self, engine: Running) -> None:
        ended = await self._end_older(engine.record.epoch + 1, 0.0)
        log.info("engine.cut_off", node=self.node, epoch=engine.record.epoch, pids=list(ended.pids))

    async def _end_older(self, epoch: int, grace_s: float) -> Ended:
        """End the processes of epochs below `epoch`; forget the engine once nothing is left of it."""
        engine = self.engine if self.engine is not None and self.engine.record.epoch < epoch else None
        record = engine.record if engine else self._home.engine
        child = engine.launched.child if engine else None
        if engine is not None:
            engine.ending = True
        ended = await end_all(lambda: self._search(record, epoch), child, grace_s, _KILL_DEADLINE_S)
        self._ended.update(ended.pids)
        if not ended.left:
            await self._forget(engine, epoch)
        return ended

    async def _forget(self, engine: Running | None, epoch: int) -> None:
        if engine is not None and engine.watch is not None:
            await engine.watch.close()
        if engine is self.engine:
            self.engine = None
        if self._home.engine is not None and self._home.engine.epoch < epoch:
            self._home.record(None)
        self.launcher.sweep(keep=self._home.engine.lifeline if self._home.engine else "")

    async def _discard(self) -> None:
        """End whatever a failed or dead start under the current epoch has left."""
        if self.engine is not None or self._home.engine is not None:
            await self._end_older(self.epoch + 1, 0.0)

    def _search(self, record: Record | None, epoch: int) -> set[processes.Identity]:
        def older(mark: Mark) -> bool:
            return mark.node == self.node and mark.holder == self._home.holder and mark.epoch < epoch

        return find(record if record is not None and record.epoch < epoch else None, older)

    def _connect(self, url: str) -> Engine:
        return engines.connect(self._settings.node.engine, url, self._session)
