"""A real llama.cpp engine process for tests: started on a free port, killed and reaped whatever happens."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from engines import connect, model_files
from engines.base import Engine, LaunchCommand
from engines.llamacpp import launch_command, open_session

START_SECONDS = 30.0
"""Deadline for an engine to serve; it takes about one second on an idle machine."""


@dataclass(frozen=True, slots=True)
class RunningEngine:
    """One engine process and its adapter."""

    process: subprocess.Popen[bytes]
    url: str
    port: int
    engine: Engine
    session: aiohttp.ClientSession
    log: Path

    @property
    def pid(self) -> int:
        """The engine's process id."""
        return self.process.pid

    def kill9(self) -> None:
        """SIGKILL the engine, as a crash would."""
        os.kill(self.pid, signal.SIGKILL)

    def stop(self) -> None:
        """SIGSTOP the engine, as a hang would."""
        os.kill(self.pid, signal.SIGSTOP)

    def cont(self) -> None:
        """Let a stopped engine go on."""
        os.kill(self.pid, signal.SIGCONT)


@contextlib.asynccontextmanager
async def running_engine(tmp_path: Path, **options: Any) -> AsyncIterator[RunningEngine]:
    """Start an engine with ``options`` of `launch_command` and yield it once it serves."""
    port = options.pop("port", None) or free_port()
    settings: dict[str, Any] = {"alias": "smollm2", "host": "127.0.0.1", "slots": 4, "context": 1024}
    command = launch_command(
        **{"python": sys.executable, "model": model_files.find(), **settings, **options, "port": port}
    )
    log = tmp_path / f"engine-{port}.log"
    process = _spawn(command, log)
    session = open_session()
    try:
        url = f"http://127.0.0.1:{port}"
        engine = connect("llamacpp", url, session)
        await _until_healthy(engine, process, log)
        yield RunningEngine(process, url, port, engine, session, log)
    finally:
        await session.close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
        process.wait(10)


def free_port() -> int:
    """Return a port nothing listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def _spawn(command: LaunchCommand, log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as output:
        return subprocess.Popen(
            command.argv,
            env={**os.environ, **command.env},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _said(log: Path) -> str:
    return log.read_text(errors="replace")[-2000:]


async def _until_healthy(engine: Engine, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        if process.poll() is not None:
            raise RuntimeError(f"the engine ended with {process.returncode}: {_said(log)}")
        if await engine.healthy(1.0):
            return
        await asyncio.sleep(0.05)
    raise RuntimeError(f"the engine was not healthy within {START_SECONDS} s: {_said(log)}")
