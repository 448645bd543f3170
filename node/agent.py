"""The agent process of one node: puts its parts together, runs them, and ends them in good order."""

import asyncio
import contextlib
import ipaddress
import os
import socket
import sys
import time
from collections.abc import Callable, Coroutine
from typing import Any

import aiohttp
import grpc.aio
import structlog

from engines.base import Engine
from engines.llamacpp import open_session
from node import command, measuring, progress, service
from node.boot import Booter
from node.gpu import account
from node.gpu.devices import wanted
from node.gpu.health import State
from node.gpu.watch import GpuWatch
from node.host import Host
from node.lease import LeaseKeeper
from node.notices import Notices
from node.once import Once
from node.probing import Prober
from node.reaper import become_subreaper
from node.registrar import Registrar
from node.report import node_report, registry_fields
from node.running import Running
from node.state import NodeDir
from protocol import unbroken_pb2 as pb
from protocol import unbroken_pb2_grpc as rpc
from recovery import registry
from recovery.auth import read_token
from recovery.config import Settings
from recovery.errors import SettingsError, StaleEpoch, StoreUnavailable, UnbrokenError
from recovery.registry import NodeState
from recovery.stopping import stop_tasks
from recovery.store import Store, connect

STOPPED = 0
CRASHED = 1

_REDIS_S = 0.7
"""Time one Redis call may take at the stop: with the engine's grace all fits into 5 s."""
_STREAMS_S = 0.5
_TRIM_S = 5.0
_AGAIN_S = 1.0
_NO_JOB = tuple(
    state
    for state in NodeState
    if state not in (NodeState.RECOVERING, NodeState.WARMING, NodeState.QUARANTINED, NodeState.NEEDS_OPERATOR)
)
"""States an orderly stop may end; in the others a recovery job has the say."""

log = structlog.get_logger()


async def run(settings: Settings, stop: asyncio.Event) -> int:
    """Run the agent until `stop` is set; return its exit code (STOPPED or CRASHED).

    Raises UnbrokenError for what another start will not mend: a wrong setting, an occupied port,
    another agent that has the node.
    """
    token = _check(settings)
    become_subreaper()
    async with contextlib.AsyncExitStack() as stack:
        home = NodeDir.open(settings.stack.state_dir, settings.node.id)
        stack.callback(home.close)
        server, port = service.bind(settings.node.agent_host, settings.node.agent_port, token)
        stack.push_async_callback(server.stop, None)
        store = connect(settings.redis)
        stack.push_async_callback(store.aclose)
        session = await stack.enter_async_context(open_session())
        agent = _Agent(settings, home, server, _announced(settings, port), store, session)
        return await agent.run(stop)


class _Agent:
    """The parts of one agent and their tasks."""

    def __init__(
        self,
        settings: Settings,
        home: NodeDir,
        server: grpc.aio.Server,
        address: str,
        store: Store,
        session: aiohttp.ClientSession,
    ) -> None:
        self._settings = settings
        self._node = settings.node.id
        self._address = address
        self._machine = settings.node.host_name or socket.gethostname()
        self._store = store
        self._server = server
        self._notices = Notices()
        self._once = Once()
        self._lease = LeaseKeeper(store, self._node, home.holder, settings.lease, self._fenced_in_redis)
        self._registrar = Registrar(store, self._node, self._describe, self._forgotten)
        self._host = Host(settings, home, self._lease, self._notices, session, self._registrar.announce)
        devices = wanted(settings.node, os.environ)
        self._gpus = GpuWatch(self._node, lambda: home.floor, devices, self._gpu_changed, home.path / "gpu.lock")
        self._boot = Booter(
            settings, store, home, self._host, self._lease, self._registrar, self._notices, self._once, address
        )
        self._boot_due = asyncio.Event()
        self._prober = Prober()
        rpc.add_AgentServicer_to_server(
            service.AgentService(self._host, self._once, self._prober, self._notices, self._registrar, self._report),
            server,
        )

    async def run(self, stop: asyncio.Event) -> int:
        """Serve from the start, so that sentinels can connect early; boot; end in good order."""
        await self._server.start()
        log.info("agent.listening", node=self._node, address=self._address)
        tasks = [
            asyncio.create_task(stop.wait(), name="stop"),
            self._tended("boot", self._boots),
            self._tended("lease", self._lease.run),
            self._tended("registrar", self._registrar.run),
            self._tended("progress", self._follows),
            self._tended("effort", self._measures),
            self._tended("trim", self._trims),
            self._tended("gpus", self._gpus.run),
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if stop.is_set():
                return STOPPED
            return _verdict(self._node, tasks)
        finally:
            await self._end(tasks)

    def _tended(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> "asyncio.Task[None]":
        """Run one of the agent's loops; an error nobody foresaw (Redis out of memory, …) must not cost the engine."""

        async def tend() -> None:
            while True:
                try:
                    return await work()
                except UnbrokenError:
                    raise
                except Exception:
                    log.exception("agent.task_failed", node=self._node, task=name)
                await asyncio.sleep(_AGAIN_S)

        return asyncio.create_task(tend(), name=name)

    async def _follows(self) -> None:
        await progress.follow(self._followed, self._settings.node.progress_interval_ms)

    async def _measures(self) -> None:
        await measuring.watch_effort(self._serving_engine, self._settings.node.progress_interval_ms)

    async def _boots(self) -> None:
        with contextlib.suppress(StoreUnavailable):
            await self._store.check()
        while True:
            await self._boot.boot()
            self._boot_due.clear()
            await self._boot_due.wait()

    async def _trims(self) -> None:
        while True:
            await asyncio.sleep(_TRIM_S)
            await asyncio.to_thread(self._host.launcher.tidy)
            await asyncio.to_thread(self._host.clearing.reaper.reap)

    async def _end(self, tasks: "list[asyncio.Task[Any]]") -> None:
        began = time.monotonic()
        self._host.leaving = True
        self._notices.send(pb.NOTICE_KIND_STOPPING, self._host.epoch)
        # The lease is renewed no more, nothing else is begun; the engine dies before the lease is given up.
        await stop_tasks(*tasks)
        await self._once.close()
        await self._prober.close()
        if self._lease.claimed:
            await self._quietly("state", self._say_stopped())
        left = await self._host.end()
        if left:
            log.error("engine.left", node=self._node, pids=list(left))
        await self._quietly("lease", self._lease.release())
        self._notices.close()
        await self._server.stop(_STREAMS_S)
        log.info("agent.stopped", node=self._node, ms=round((time.monotonic() - began) * 1_000))

    async def _say_stopped(self) -> None:
        await registry.set_state(
            self._store,
            self._node,
            self._host.epoch,
            NodeState.STOPPED,
            only_in=_NO_JOB,
            why="the agent stops in good order",
            by="agent",
        )

    async def _quietly(self, what: str, work: Coroutine[Any, Any, None]) -> None:
        try:
            await asyncio.wait_for(work, _REDIS_S)
        except Exception as error:  # noqa: BLE001 - the engine must be ended whatever Redis says
            log.warning("agent.stop_not_told", node=self._node, what=what, error=str(error) or "no answer in time")

    def _fenced_in_redis(self, current: int) -> None:
        """The lease says that the node moved on: cut our engine off and wait for commands."""
        log.warning("agent.fenced", node=self._node, epoch=current)
        try:
            self._host.fence(current)
        except StaleEpoch as error:
            log.info("agent.overtaken", node=self._node, error=str(error))

    def _forgotten(self) -> None:
        """Redis lost everything: nobody is left to command a fenced node, so it begins anew."""
        if self._host.phase == pb.PHASE_FENCED:
            self._boot_due.set()

    def _gpu_changed(self) -> None:
        health = self._gpus.health
        self._host.lose_gpu(health.detail if health.state is State.LOST else "")
        self._registrar.announce()

    def _report(self, full: bool) -> pb.NodeReport:
        return account.fill(
            node_report(self._host, self._lease, self._prober.under_way_s), self._gpus.health, devices=full
        )

    def _describe(self) -> tuple[int, dict[str, str | int | float | bool]]:
        fields = registry_fields(self._host, self._settings.node, self._address, self._machine)
        return self._host.epoch, fields | account.registry_fields(self._gpus.health)

    def _followed(self) -> "tuple[Engine, progress.ProgressLog] | None":
        engine = self._serving_engine()
        return (engine.adapter, engine.progress) if engine is not None else None

    def _serving_engine(self) -> Running | None:
        engine = self._host.engine
        return engine if engine is not None and engine.serving else None


def _check(settings: Settings) -> str | None:
    """Return the agents' token. Raises SettingsError."""
    if not sys.platform.startswith("linux"):
        raise SettingsError("the agent needs Linux: it watches and ends processes through /proc and pidfd")
    command.check(settings.node.command)
    advice = settings.lease.advice()
    if advice:
        log.warning("lease.tight", node=settings.node.id, advice=advice)
    token = read_token(settings.auth.agent_token_file)
    host = settings.node.agent_host
    if token is None and not _loopback(host):
        raise SettingsError(
            f"auth.agent_token_file: needed because node.agent_host {host} can be reached from other machines"
        )
    return token


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _announced(settings: Settings, port: int) -> str:
    """Return the address others reach this agent at."""
    host = settings.node.agent_host
    with contextlib.suppress(ValueError):
        if ipaddress.ip_address(host).is_unspecified:
            host = settings.node.host_name or socket.gethostname()
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _verdict(node: str, tasks: "list[asyncio.Task[Any]]") -> int:
    """Say why a task that should never end has ended; a refusal is raised on."""
    for task in tasks:
        error = task.exception() if task.done() and not task.cancelled() else None
        if isinstance(error, UnbrokenError):
            raise error
        if error is not None:
            log.error("agent.crashed", node=node, task=task.get_name(), exc_info=error)
    return CRASHED
