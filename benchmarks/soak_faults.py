"""The soak's faults: real signals to real processes of a running stack, each with the proof that it worked."""

import asyncio
import os
import random
import signal
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from benchmarks.processes import children, state, until
from benchmarks.soak_load import Load
from cli.faults import FaultFailed, kill_process
from cli.operations import GatewayAnswer, Operations
from cli.stack import Stack
from node import mark

_STOP_S = 5.0
_LOSS_S = 1.0
"""What an append-only file that is synced each second may lose when its machine fails."""
_SAMPLE_S = 0.1
_KEPT = 100


class Faults:
    """Injects faults by name."""

    def __init__(
        self, stack: Stack, api: Operations, load: Load, rng: random.Random, say: Callable[[str], None]
    ) -> None:
        self._stack = stack
        self._api = api
        self._load = load
        self._rng = rng
        self._say = say
        self._nodes = stack.settings.stack.nodes
        self._background: set[asyncio.Task[None]] = set()
        self._sizes: list[tuple[float, Path, int]] = []
        self._sampler = asyncio.create_task(self._sample())
        self.injected: list[tuple[str, float]] = []
        self.deaths: list[float] = []
        """When an engine or its agent was killed or stopped, wall clock: each may cut a request once."""
        self.lossy = False
        """Whether Redis was made to lose writes."""
        self.missed: list[str] = []
        """Faults that found nobody to hit."""
        self.all: dict[str, Callable[[], Awaitable[None]]] = {
            "engine": lambda: self._engines(1),
            "both_engines": lambda: self._engines(len(self._nodes)),
            "engine_hangs": self._hang,
            "engine_twice": self._twice,
            "agent": lambda: self._kill(self._agent()),
            "agent_and_engine": self._node,
            "agent_freezes": lambda: self._freeze(self._agent()),
            "sentinel": lambda: self._kill("sentinel"),
            "sentinel_freezes": lambda: self._freeze("sentinel"),
            "dispatcher": lambda: self._kill("dispatcher"),
            "worker_fast": lambda: self._kill("worker-fast"),
            "worker_slow": lambda: self._kill("worker-slow"),
            "worker_child": self._worker_child,
            "redis": lambda: self._kill("redis"),
            "redis_freezes": lambda: self._freeze("redis"),
            "redis_loses_a_second": self._lossy_redis,
            "engine_and_worker_slow": lambda: self._engine_and("worker-slow"),
            "engine_and_worker_fast": lambda: self._engine_and("worker-fast"),
            "engine_and_redis": lambda: self._engine_and("redis"),
            "engine_and_sentinel": lambda: self._engine_and("sentinel"),
            "engine_and_dispatcher": lambda: self._engine_and("dispatcher"),
            "engine_and_lossy_redis": self._engine_and_lossy_redis,
            "client_leaves": self._leave,
        }

    async def inject(self, name: str) -> None:
        """Inject one fault; one that finds nobody to hit is noted as missed."""
        at = time.time()
        try:
            await self.all[name]()
        except (FaultFailed, ProcessLookupError) as error:
            self.missed.append(f"{name}: {error}")
            self._say(f"{name}: missed, {error}")
        else:
            self.injected.append((name, at))
            self._say(name)

    async def settle(self) -> None:
        """Wait until every frozen process goes on again."""
        self._sampler.cancel()
        await asyncio.gather(self._sampler, *self._background, return_exceptions=True)

    # ---- engines ----------------------------------------------------------------------------------------------

    async def _engines(self, count: int) -> None:
        nodes = self._rng.sample(self._nodes, count)
        await asyncio.gather(*(self._kill_engine(node) for node in nodes))

    async def _kill_engine(self, node: str) -> None:
        pid = engine_of(self._stack, node)
        self.deaths.append(time.time())
        await kill_process(pid)
        self._say(f"  engine of {node}, pid {pid}, is dead")

    async def _hang(self) -> None:
        node = self._rng.choice(self._nodes)
        pid = engine_of(self._stack, node)
        self.deaths.append(time.time())
        os.kill(pid, signal.SIGSTOP)
        await until(lambda: state(pid) in "TZX", f"engine {pid} stops")
        self._say(f"  engine of {node}, pid {pid}, is stopped")

    async def _twice(self) -> None:
        """The replacement dies too: while it loads, warms up or stands on probation."""
        node = self._rng.choice(self._nodes)
        state = self._rng.choice(("RECOVERING", "WARMING", "PROBATION"))
        old = engine_of(self._stack, node)
        await self._kill_engine(node)
        end = time.monotonic() + 20
        while time.monotonic() < end:
            try:
                shown = (await self._api.get(f"/v1/nodes/{node}"))["state"]
                new = engine_of(self._stack, node)
            except (FaultFailed, GatewayAnswer):
                pass
            else:
                if shown == state and new != old:
                    break
                if shown == "ALIVE" and new != old:
                    self._say(f"  {node} was never seen {state}")
                    return
            await asyncio.sleep(0.02)
        await self._kill_engine(node)
        self._say(f"  {node} was {state}")

    async def _engine_and(self, process: str) -> None:
        first = self._rng.random() < 0.5
        lag = self._rng.choice((0.0, 0.0, 0.02, 0.3, 1.5))
        steps: list[Callable[[], Awaitable[None]]] = [lambda: self._engines(1), lambda: self._kill(process)]
        for step in steps if first else reversed(steps):
            await step()
            await asyncio.sleep(lag)

    # ---- the rest of the stack --------------------------------------------------------------------------------

    def _agent(self) -> str:
        return f"agent-{self._rng.choice(self._nodes)}"

    async def _node(self) -> None:
        node = self._rng.choice(self._nodes)
        await asyncio.gather(self._kill(f"agent-{node}"), self._kill_engine(node))

    def _pid(self, process: str) -> int:
        assert self._stack.supervisor is not None  # noqa: S101 - for the type checker: start() has returned
        pid = self._stack.supervisor.pid(process)
        if pid is None:
            raise FaultFailed(f"{process} is not running")
        return pid

    async def _kill(self, process: str) -> None:
        pid = self._pid(process)
        if process.startswith("agent"):
            self.deaths.append(time.time())
        await kill_process(pid)
        self._say(f"  {process}, pid {pid}, is dead")

    async def _worker_child(self) -> None:
        worker = self._rng.choice(("worker-fast", "worker-slow"))
        pids = children(self._pid(worker))
        if not pids:
            raise FaultFailed(f"{worker} has no children")
        pid = self._rng.choice(pids)
        await kill_process(pid)
        self._say(f"  a child of {worker}, pid {pid}, is dead")

    async def _freeze(self, process: str) -> None:
        pid, seconds = self._pid(process), self._rng.uniform(0.3, _STOP_S)
        if process.startswith("agent"):
            self.deaths.append(time.time())
        os.kill(pid, signal.SIGSTOP)
        await until(lambda: state(pid) in "TZX", f"{process} stops")
        self._say(f"  {process}, pid {pid}, is stopped for {seconds:.1f} s")

        async def thaw() -> None:
            try:
                await asyncio.sleep(seconds)
            finally:
                try:
                    os.kill(pid, signal.SIGCONT)
                except ProcessLookupError:
                    self._say(f"  {process}, pid {pid}, died while it was stopped")
                else:
                    self._say(f"  {process}, pid {pid}, goes on")

        task = asyncio.create_task(thaw())
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _lossy_redis(self) -> None:
        pid, now = self._pid("redis"), time.monotonic()
        await kill_process(pid)
        kept = [(path, size) for at, path, size in self._sizes if at <= now - _LOSS_S]
        if not kept:
            return
        path, size = kept[-1]
        before = path.stat().st_size
        self.lossy = True
        os.truncate(path, min(size, before))
        self._say(f"  redis, pid {pid}, is dead and lost {before - size} bytes")

    async def _engine_and_lossy_redis(self) -> None:
        await self._engines(1)
        await asyncio.sleep(self._rng.uniform(0, 1.5))
        await self._lossy_redis()

    async def _sample(self) -> None:
        folder = self._stack.state_dir / "redis"
        while True:
            for path in folder.glob("**/*.incr.aof"):
                self._sizes.append((time.monotonic(), path, path.stat().st_size))
            del self._sizes[:-_KEPT]
            await asyncio.sleep(_SAMPLE_S)

    async def _leave(self) -> None:
        running = [number for number, (_, asked) in self._load.running.items() if not asked.left]
        if not running or not self._load.leave(self._rng.choice(running)):
            raise FaultFailed("no request is running")


def engine_of(stack: Stack, node: str) -> int:
    """Return the pid of a node's newest engine. Raises FaultFailed when it has none."""
    found = engines(stack, node)
    if not found:
        raise FaultFailed(f"node {node} has no engine now")
    return found[-1][1]


def engines(stack: Stack, node: str) -> list[tuple[int, int]]:
    """Return (epoch, pid) of all engine processes of a node of this stack."""
    try:
        holder = (stack.state_dir / "nodes" / node / "holder").read_text(encoding="ascii").strip()
    except OSError:
        return []
    found = []
    for entry in Path("/proc").iterdir():
        about = mark.of(int(entry.name)) if entry.name.isdigit() else None
        if about is not None and (about.node, about.holder) == (node, holder) and state(int(entry.name)) not in "ZX":
            found.append((about.epoch, int(entry.name)))
    return sorted(found)
