"""A real agent process with a real engine for tests: spoken to over gRPC, killed and cleaned up whatever happens."""

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import grpc.aio

from node import mark, processes
from protocol import unbroken_pb2 as pb
from protocol import unbroken_pb2_grpc as rpc
from protocol.channel import credentials, open_channel
from recovery import registry
from recovery.errors import UnbrokenError
from recovery.store import Store

ROOT = Path(__file__).parents[2]
SERVING_S = 40.0
"""Deadline for an engine to serve; it takes one or two seconds on an idle machine."""

T = TypeVar("T")


class RunningAgent:
    """One agent process after another on one state directory."""

    def __init__(self, redis_url: str, folder: Path, node: str, overrides: dict[str, Any]) -> None:
        self.node = node
        self.store = Store(redis_url)
        self.state_dir = folder / "state"
        self.log = folder / f"agent-{node}.log"
        self.process: subprocess.Popen[bytes] | None = None
        self.token: str | None = None
        self._config = folder / "empty.toml"
        self._config.write_text("")
        self._settings: dict[str, Any] = {
            "redis__url": redis_url,
            "node__id": node,
            "node__slots": 2,
            "node__context": 512,
            "node__term_grace_s": 1.0,
            "stack__state_dir": self.state_dir,
            "log__format": "json",
            "log__level": "debug",
            **overrides,
        }
        self._channels: list[grpc.aio.Channel] = []

    @property
    def pid(self) -> int:
        """The agent's pid."""
        assert self.process is not None
        return self.process.pid

    @property
    def home(self) -> Path:
        """The node's state directory."""
        return self.state_dir / "nodes" / self.node

    @property
    def holder(self) -> str:
        """The agent's lease holder id."""
        return (self.home / "holder").read_text()

    def start(self) -> None:
        """Start an agent process."""
        env = {name: value for name, value in os.environ.items() if not name.startswith("UNBROKEN_")}
        env |= {f"UNBROKEN_{name.upper()}": str(value) for name, value in self._settings.items()}
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "node"],
                cwd=ROOT,
                env=env | {"UNBROKEN_CONFIG": str(self._config)},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def kill9(self) -> None:
        """SIGKILL the agent; its engine lives on."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(10)

    async def terminate(self, timeout: float = 15.0) -> int:
        """SIGTERM the agent and return its exit code."""
        assert self.process is not None
        self.process.terminate()
        return await self.exit_code(timeout)

    async def exit_code(self, timeout: float = 15.0) -> int:
        """Wait for the agent's end and return its exit code."""
        assert self.process is not None
        return await asyncio.to_thread(self.process.wait, timeout)

    def said(self) -> str:
        """Return what the agents have logged."""
        return self.log.read_text(errors="replace")

    async def address(self) -> str:
        """Wait until an agent answers at the registered address, and return that."""

        async def listening() -> str | None:
            try:
                found = (await registry.get(self.store, self.node)).agent
            except UnbrokenError:
                return None
            return found if found and await self._answers(found) else None

        return await until(listening, 15.0, self.said)

    async def stub(self, address: str = "") -> rpc.AgentStub:
        """Return a stub on a channel of its own, closed with the rig."""
        channel = open_channel(address or await self.address())
        self._channels.append(channel)
        return rpc.AgentStub(channel)

    async def status(self) -> pb.NodeReport:
        """Ask the agent how the node stands."""
        stub = await self.stub()
        report: pb.NodeReport = await stub.Status(pb.StatusRequest(), timeout=5, metadata=credentials(self.token))
        return report

    async def phase(self, wanted: "pb.Phase", timeout: float = SERVING_S) -> pb.NodeReport:
        """Wait until the node is in a phase and return its report."""
        stub = await self.stub()

        async def reached() -> pb.NodeReport | None:
            report = await stub.Status(pb.StatusRequest(), timeout=5, metadata=credentials(self.token))
            return report if report.phase == wanted else None

        return await until(reached, timeout, self.said)

    async def serving(self) -> pb.NodeReport:
        """Wait until the engine serves and has proven itself, and return the report."""
        await self.phase(pb.PHASE_SERVING)
        stub = await self.stub()

        async def ready() -> pb.NodeReport | None:
            report = await stub.Status(pb.StatusRequest(), timeout=5, metadata=credentials(self.token))
            return report if report.ready else None

        return await until(ready, SERVING_S, self.said)

    def command(self, epoch: int, node: str = "") -> pb.Command:
        """Return a command for this node."""
        return pb.Command(node=node or self.node, epoch=epoch, job="job-1")

    def engines(self) -> set[processes.Identity]:
        """Return the living engine processes this node's agents have launched."""
        holder = self.holder if (self.home / "holder").exists() else ""
        return set(mark.find(lambda found: bool(holder) and found.holder == holder))

    def lifelines(self) -> list[Path]:
        """Return the folders of lifelines of this node's engines."""
        return list(Path("/dev/shm").glob(f"unbroken-lifelines-{self.holder}-*"))

    async def aclose(self) -> None:
        """End agent and engines, roughly."""
        for channel in self._channels:
            await channel.close()
        await self.store.aclose()
        if self.process is not None and self.process.poll() is None:
            self.kill9()
        end = time.monotonic() + 10
        while (left := self.engines()) and time.monotonic() < end:
            for identity in left:
                processes.send(identity, signal.SIGKILL)
            await asyncio.sleep(0.05)
        if (self.home / "holder").exists():
            for path in self.lifelines():
                shutil.rmtree(path, ignore_errors=True)
        assert not left, f"engines survived: {left}"

    async def _answers(self, address: str) -> bool:
        host, _, port = address.rpartition(":")
        if self.process is None or self.process.poll() is not None:
            raise AssertionError(f"the agent has ended: {self.said()}")
        try:
            _, writer = await asyncio.open_connection(host, int(port))
        except OSError:
            return False
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
        return True


@contextlib.asynccontextmanager
async def running_agent(
    redis_url: str, tmp_path: Path, node: str = "a", *, started: bool = True, **overrides: Any
) -> AsyncIterator[RunningAgent]:
    """Start an agent with settings `section__name=value` and yield it; nothing is waited for."""
    folder = tmp_path / f"agent-{node}"
    folder.mkdir(exist_ok=True)
    agent = RunningAgent(redis_url, folder, node, overrides)
    try:
        if started:
            agent.start()
        yield agent
    finally:
        await agent.aclose()


async def until(question: Callable[[], Awaitable[T | None]], timeout: float = 10.0, said: Callable[[], str] = str) -> T:
    """Ask until the answer is neither None nor False; fail with what was `said` once the time is over."""
    end = time.monotonic() + timeout
    while True:
        answer = await question()
        if answer:
            return answer
        if time.monotonic() > end:
            raise AssertionError(f"not within {timeout} s: {question.__qualname__}\n{said()[-6000:]}")
        await asyncio.sleep(0.02)
