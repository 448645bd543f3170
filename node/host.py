"""One node's engine and everything that may be done to it: launch, adopt, fence, reclaim, warm up, end.

Each command checks the epoch first; the highest one seen is on disk before anything is done under it.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace

import aiohttp
import structlog

import engines
from engines.base import Engine, EngineError
from node.clearing import Clearing
from node.deathwatch import exit_text
from node.gpu.refusal import GpuLost
from node.launcher import Launched, Launcher, StartFailed
from node.lease import LeaseKeeper
from node.notices import Notices
from node.reclaim import Ended
from node.refusals import NoLease, NotServing, OldEngineRuns, WarmUpFailed
from node.running import Running
from node.state import NodeDir, Record
from protocol import unbroken_pb2 as pb
from recovery.config import Settings
from recovery.errors import StaleEpoch

_FENCED_GRACE_S = 0.5
"""TERM's grace for an engine already fenced: nobody waits for its answers any more."""

log = structlog.get_logger()


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
        self.gpu_lost = ""
        """Why the node's GPU is lost, empty while it is not."""
        self.leaving = False
        """The agent is told to stop: whatever still runs takes no new work."""
        self.launcher = Launcher(settings.node, home)
        self.clearing = Clearing(settings.node.id, home)
        self._settings = settings
        self._home = home
        self._lease = lease
        self._notices = notices
        self._session = session
        self._changed = changed
        self._cutting: asyncio.Task[None] | None = None

    @property
    def epoch(self) -> int:
        """The highest epoch seen."""
        return self._home.floor

    @property
    def serving(self) -> bool:
        """Whether an engine serves under the current epoch."""
        return self.engine is not None and self.engine.serving and self.engine.record.epoch == self.epoch

    @property
    def ready(self) -> bool:
        """Whether the engine may be given work: not before it has generated something, nor once it is to end."""
        proven = self.engine is not None and self.engine.proven
        return proven and self.serving and self.phase == pb.PHASE_SERVING and not self.leaving

    def accept(self, epoch: int) -> None:
        """Take note of a command's epoch; a new one ends all claims of the old. Raises StaleEpoch."""
        if epoch < self.epoch:
            raise StaleEpoch(self.node, epoch, self.epoch)
        if epoch > self.epoch:
            self._home.raise_floor(epoch)
            self._lease.drop()
            self.clearing.ended = set()
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
        self._start_cutting(engine)

    def wait_for_commands(self, epoch: int) -> None:
        """Take no action of our own: a recovery job is at work on this node. Raises StaleEpoch."""
        self.accept(epoch)
        if not self.serving:
            self.phase = pb.PHASE_FENCED

    async def reclaim(self, epoch: int) -> Ended:
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
        return Ended(tuple(sorted(self.clearing.ended)), ended.left)

    async def start(self, epoch: int) -> Record:
        """Launch an engine under `epoch` and wait until it serves; at once when it does already.

        Raises StaleEpoch, LeaseHeld, OldEngineRuns, StartFailed, GpuLost.
        """
        self.accept(epoch)
        if self.gpu_lost:
            refusal = GpuLost(self.node, self.gpu_lost)
            self.fail(epoch, str(refusal))
            raise refusal
        if self.serving and self.engine is not None:
            return self.engine.record
        await self._cut()
        older = await asyncio.to_thread(self.clearing.older, self._home.engine, epoch)
        if older:
            pids = ", ".join(str(one.pid) for one in sorted(older, key=lambda one: one.pid))
            raise OldEngineRuns(f"node {self.node}: processes of an older epoch still run (pid {pids}): reclaim first")
        await self._take_lease(epoch)
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
        engine = Running(Launched(record, None), self._connect(record.url), adopted=True)
        if not await engine.answers():
            log.warning("engine.not_adopted", node=self.node, epoch=record.epoch, pid=record.pid)
            return False
        members = await asyncio.to_thread(engine.find_members)
        self.engine = engine
        engine.begin_watch(lambda evidence: self._died(engine, evidence))
        engine.cover(members)
        self.phase = pb.PHASE_SERVING
        self.lose_gpu(self.gpu_lost)
        log.info("engine.adopted", node=self.node, epoch=record.epoch, pid=record.pid)
        return True

    async def warm_up(self, epoch: int) -> tuple[int, int]:
        """Prove the engine before it takes work; return tokens and ms.

        Raises StaleEpoch, NotServing, WarmUpFailed, NoLease, LeaseHeld.
        """
        self.accept(epoch)
        if not self._lease.held:
            await self._take_lease(epoch)
        if not self._lease.held:
            raise NoLease(f"node {self.node}: its lease is not held (Redis away?): nothing may be sent to it yet")
        return await self.prove(epoch)

    async def prove(self, epoch: int) -> tuple[int, int]:
        """Run a few short generations, once; return tokens and ms. Raises StaleEpoch, NotServing, WarmUpFailed."""
        self.accept(epoch)
        engine = self.engine
        if engine is None or not self.serving:
            raise NotServing(f"node {self.node}: no engine serves under epoch {epoch}")
        try:
            return await engine.prove()
        except (EngineError, TimeoutError) as error:
            if engine.dead or engine.ending:
                raise NotServing(f"node {self.node}: the engine ended while it warmed up") from error
            message = f"node {self.node}: warm-up failed: {error or 'no answer in time'}"
            # An engine that cannot generate is none: whoever asks for one next gets another.
            engine.ending = True
            self.fail(epoch, message)
            await self._discard()
            raise WarmUpFailed(message) from error

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

    def lose_gpu(self, evidence: str) -> None:
        """Take note that the node's GPU is lost, or (empty) that it is there; an engine on a lost one is dead."""
        self.gpu_lost = evidence
        if evidence and self.engine is not None and not self.engine.dead:
            self._died(self.engine, evidence, "gpu_lost")

    async def _take_lease(self, epoch: int) -> None:
        """Take it, or go on without: then the report says so, and no work comes (requirements D3, D12)."""
        try:
            await self._lease.take(epoch)
        except StaleEpoch as error:
            self.accept(error.current)
            raise

    async def _launch(self, epoch: int) -> Record:
        await self._discard()
        began = time.monotonic()
        launched = await self.launcher.launch(epoch)
        self.clearing.reaper.launched(launched.record.pid)
        engine = Running(launched, self._connect(launched.record.url))
        self.engine = engine
        engine.begin_watch(lambda evidence: self._died(engine, evidence))
        self.lose_gpu(self.gpu_lost)
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

    def _died(self, engine: Running, evidence: str, cause: str = "process_exit") -> None:
        news = self.serving and engine is self.engine
        engine.dead = evidence
        if not news:
            return
        # First the notice: every millisecond here is a paused stream.
        self._notices.send(pb.NOTICE_KIND_ENGINE_DOWN, engine.record.epoch, cause, evidence)
        self.phase, self.detail = pb.PHASE_DOWN, evidence
        log.error("engine.down", node=self.node, epoch=engine.record.epoch, evidence=evidence)
        # What is left of it is of no use, and its frozen sockets would keep gateways waiting.
        self._start_cutting(engine)

    async def _cut(self) -> None:
        if self._cutting is not None:
            await asyncio.gather(self._cutting, return_exceptions=True)

    def _start_cutting(self, engine: Running) -> None:
        if self._cutting is None or self._cutting.done():
            self._cutting = asyncio.create_task(self._cut_off(engine), name="cut off")

    async def _cut_off(self, engine: Running) -> None:
        epoch = engine.record.epoch
        ended = await self._end_older(epoch + 1, 0.0)
        how = exit_text(engine.launched.child)
        log.info("engine.cut_off", node=self.node, epoch=epoch, pids=list(ended.pids), left=list(ended.left), exit=how)

    async def _end_older(self, epoch: int, grace_s: float) -> Ended:
        """End the processes of epochs below `epoch`; forget the engine once nothing is left of it."""
        engine = self.engine if self.engine is not None and self.engine.record.epoch < epoch else None
        if engine is not None:
            engine.ending = True
        ended = await self.clearing.end(engine, epoch, grace_s)
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
        await self._cut()
        if self.engine is not None or self._home.engine is not None:
            await self._end_older(self.epoch + 1, 0.0)

    def _connect(self, url: str) -> Engine:
        return engines.connect(self._settings.node.engine, url, self._session)
