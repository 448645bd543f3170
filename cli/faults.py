"""Faults on purpose, each with the proof that it happened; for the demo, the benchmarks and the drills."""

import asyncio
import os
import signal
import time
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cli.answers import Answer
from cli.operations import Operations
from cli.stack import free_port
from node.processes import read
from protocol import unbroken_pb2, unbroken_pb2_grpc
from protocol.channel import credentials, open_channel
from recovery.config import Settings, load
from recovery.errors import UnbrokenError


class FaultFailed(UnbrokenError):
    """The fault could not be injected, so nothing that follows would prove anything."""


@dataclass(frozen=True, slots=True)
class Killed:
    """Proof that a process was killed."""

    pid: int
    at: float
    """time.monotonic() just before the signal."""
    wall_ms: int
    """The same moment, ms since 1970."""


class KillEngine:
    """Kills the engine that serves an answer once the answer has some pieces of text."""

    def __init__(self, answer: Answer, after: int, api: Operations, token: str | None, timeout: float = 120.0) -> None:
        self._answer = answer
        self._after = after
        self._api = api
        self._token = token
        self._timeout = timeout
        self._reached = asyncio.Event()
        self._show = answer.on_text
        answer.on_text = self._saw
        self.done: Killed | None = None

    async def beside(self, streams: Sequence[Coroutine[Any, Any, Answer]]) -> Killed:
        """Run the streams to their end, kill in between, and return the proof.

        Raises FaultFailed when the answer ended first, and whatever a stream raised.
        """
        async with asyncio.timeout(self._timeout):
            killing = asyncio.create_task(self._kill())
            try:
                await asyncio.gather(*streams)
            finally:
                if not self._reached.is_set():
                    killing.cancel()
                await asyncio.wait({killing})
        if killing.cancelled():
            raise FaultFailed("the answer ended before its engine could be killed")
        return killing.result()

    def _saw(self, text: str) -> None:
        if self._show is not None:
            self._show(text)
        if len(self._answer.arrivals) >= self._after:
            self._reached.set()

    async def _kill(self) -> Killed:
        await self._answer.opened.wait()
        node = await self._api.get(f"/v1/nodes/{self._answer.node}")
        pid = await engine_pid(node["agent"], self._token)
        await self._reached.wait()
        self.done = await kill_process(pid)
        return self.done


def fault_settings(folder: Path, **sections: dict[str, Any]) -> Settings:
    """Return settings of a stack to hurt: free ports, its state below `folder`, and what `sections` say.

    Faults come faster than a real probation lasts, and more often than real budgets allow.
    """
    changes: dict[str, dict[str, Any]] = {
        "stack": {"state_dir": folder / "state", "flower_port": free_port(), "restarts": 1_000},
        "gateway": {"port": free_port()},
        "probation": {"hold_s": 0.3, "step": 0.5, "step_interval_s": 0.1},
        "limits": {"restarts": 1_000, "recoveries": 1_000},
        "log": {"format": "json"},
    }
    for section, values in sections.items():
        changes.setdefault(section, {}).update(values)
    settings = load()
    return settings.model_copy(
        update={name: getattr(settings, name).model_copy(update=values) for name, values in changes.items()}
    )


async def engine_pid(agent: str, token: str | None, timeout: float = 2.0) -> int:
    """Ask an agent (host:port) for the pid of its engine. Raises FaultFailed when it has none."""
    channel = open_channel(agent)
    try:
        stub = unbroken_pb2_grpc.AgentStub(channel)
        report = await stub.Status(unbroken_pb2.StatusRequest(), timeout=timeout, metadata=credentials(token))
    finally:
        await channel.close()
    if not report.engine_pid:
        raise FaultFailed(f"the agent at {agent} has no engine running")
    return int(report.engine_pid)


async def kill_process(pid: int, timeout: float = 5.0) -> Killed:
    """SIGKILL a process and return once the kernel shows it dead. Raises FaultFailed."""
    if _is_dead(pid):
        raise FaultFailed(f"process {pid} was dead before the fault")
    at, wall_ms = time.monotonic(), int(time.time() * 1_000)
    os.kill(pid, signal.SIGKILL)
    deadline = at + timeout
    while not _is_dead(pid):
        if time.monotonic() > deadline:
            raise FaultFailed(f"process {pid} is still alive {timeout:g} s after SIGKILL")
        await asyncio.sleep(0.002)
    return Killed(pid, at, wall_ms)


def _is_dead(pid: int) -> bool:
    stat = read(pid)
    return stat is None or not stat.living
