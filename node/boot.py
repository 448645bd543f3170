"""How an agent begins: keep the engine that still serves, start a new one, or wait for a recovery job.

Redis decides (`recovery.leases.boot`); while it is away an engine that serves goes on serving.
"""

import asyncio
import time

import structlog

from node.host import Host
from node.launcher import StartFailed
from node.lease import LeaseKeeper
from node.notices import Notices
from node.once import Once
from node.refusals import NotServing, WarmUpFailed
from node.registrar import Registrar
from node.state import NodeDir
from protocol import unbroken_pb2 as pb
from recovery import leases, registry
from recovery.config import Settings
from recovery.errors import LeaseHeld, StaleEpoch, StoreUnavailable
from recovery.registry import NodeState
from recovery.store import Store

_RETRY_S = 0.2
_RETRY_MAX_S = 2.0

log = structlog.get_logger()


class Booter:
    """Brings a node up once, and again after Redis has lost everything about it."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        home: NodeDir,
        host: Host,
        lease: LeaseKeeper,
        registrar: Registrar,
        notices: Notices,
        once: Once,
        address: str,
    ) -> None:
        self._settings = settings
        self._node = settings.node.id
        self._store = store
        self._home = home
        self._host = host
        self._lease = lease
        self._registrar = registrar
        self._notices = notices
        self._once = once
        self._address = address

    async def boot(self) -> None:
        """Take the lease and do what the verdict says. Raises LeaseHeld when another agent keeps the node."""
        record = self._home.engine
        if self._host.engine is None and record is not None and record.epoch == self._home.floor:
            await self._once.run(("adopt", record.epoch), lambda: self._host.adopt(record))
        verdict = await self._ask()
        log.info("agent.booted", node=self._node, epoch=verdict.epoch, verdict=verdict.verdict)
        await self._once.run(("boot", verdict.epoch), lambda: self._follow(verdict))

    async def _ask(self) -> leases.Boot:
        timeout_ms = self._settings.lease.lease_timeout_ms
        # The other holder may be dead: its lease then lapses within one timeout.
        patience = (timeout_ms + 2 * self._settings.lease.renew_interval_ms) / 1_000
        held_since: float | None = None
        pause = _RETRY_S
        told = False
        while True:
            running = self._home.engine.epoch if self._host.serving and self._home.engine else 0
            try:
                return await leases.boot(
                    self._store, self._node, self._home.holder, self._home.floor, running, timeout_ms
                )
            except StoreUnavailable as error:
                if not told:
                    log.warning("agent.waits_for_redis", node=self._node, error=str(error))
                told = True
                await asyncio.sleep(pause)
                pause = min(2 * pause, _RETRY_MAX_S)
            except LeaseHeld as error:
                if held_since is None:
                    held_since = time.monotonic()
                    log.warning("agent.waits_for_lease", node=self._node, error=str(error))
                elif time.monotonic() - held_since > patience:
                    raise
                await asyncio.sleep(_RETRY_S)

    async def _follow(self, verdict: leases.Boot) -> None:
        epoch = verdict.epoch
        try:
            if verdict.verdict == "start":
                await self._start(epoch)
                return
            self._host.wait_for_commands(epoch)
            if verdict.verdict == "adopt" or self._host.serving:
                self._lease.claim(epoch, renewed=True)
        except StaleEpoch as error:
            # A recovery job's command came first; it knows better than our older question.
            log.info("agent.overtaken", node=self._node, error=str(error))
        finally:
            self._registrar.announce()

    async def _start(self, epoch: int) -> None:
        self._host.accept(epoch)
        self._lease.claim(epoch, renewed=True)
        await self._say_starting(epoch)
        self._registrar.announce()
        reclaimed = await self._host.reclaim(epoch)
        try:
            if reclaimed.left:
                self._host.fail(epoch, f"old engine processes would not die: pids {list(reclaimed.left)}")
                self._tell_failed(epoch)
                return
            await self._host.start(epoch)
            # Nothing is sent to an engine that has never generated anything (WarmUp does it for recovery jobs).
            await self._host.prove(epoch)
        except (StartFailed, WarmUpFailed):
            self._tell_failed(epoch)
        except NotServing:
            pass  # died or fenced meanwhile, which was told

    def _tell_failed(self, epoch: int) -> None:
        self._notices.send(pb.NOTICE_KIND_ENGINE_DOWN, epoch, "start_failed", self._host.detail)

    async def _say_starting(self, epoch: int) -> None:
        try:
            await registry.set_state(
                self._store,
                self._node,
                epoch,
                NodeState.STARTING,
                why=f"the agent starts an engine under epoch {epoch}",
                by="agent",
                agent=self._address,
                engine_url="",
                cause="",
                detail="",
            )
        except (StoreUnavailable, StaleEpoch) as error:
            log.warning("registry.not_written", node=self._node, error=str(error))
