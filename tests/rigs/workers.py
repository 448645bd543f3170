"""The real worker processes for tests: two Celery worker sets and a dispatcher, which can be killed at will."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Generator
from pathlib import Path
from typing import IO, TypeVar

from tests.rigs.ports import free_port
from workers.app import flower_argv, flower_env, worker_argv, worker_env

_ROOT = Path(__file__).parents[2]
_START_S = 60.0

T = TypeVar("T")


class Process:
    """One subprocess with its log in a file."""

    def __init__(self, name: str, argv: list[str], env: dict[str, str], ready: str, log_dir: Path) -> None:
        self.name = name
        self.log = log_dir / f"{name}.log"
        self._argv, self._env, self._ready = argv, env, ready
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The process's pid."""
        assert self._process is not None
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start it, without waiting."""
        with self.log.open("ab") as output:
            self._spawn(output)

    def start_unheard(self) -> None:
        """Start it like `start`, but nobody reads what it says: every write is a broken pipe."""
        reading, writing = os.pipe()
        self._spawn(writing)
        os.close(writing)
        os.close(reading)

    def _spawn(self, output: IO[bytes] | int) -> None:
        self._process = subprocess.Popen(
            self._argv, cwd=_ROOT, env={**os.environ, **self._env}, stdin=subprocess.DEVNULL,
            stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip

    def wait_ready(self) -> None:
        """Wait until it says in its log that it is ready."""
        end = time.monotonic() + _START_S
        while time.monotonic() < end:
            if self._ready in self.said():
                return
            if not self.running:
                break
            time.sleep(0.05)
        raise AssertionError(f"{self.name} is not ready: {self.said()[-3_000:]}")

    def said(self) -> str:
        """Return its log."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def children(self) -> list[int]:
        """Return the pids of its child processes."""
        return [int(pid) for pid in Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()]

    def kill(self) -> None:
        """SIGKILL it with all its children, as the machine's death would."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            self._process.wait(10)

    def stop(self) -> int:
        """End it in good order and return its exit code."""
        if self._process is None:
            return 0
        if self.running:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                return self._process.wait(15)
            self.kill()
        return self._process.wait(10)


class WorkerSet:
    """Fast workers, slow workers and a dispatcher on one Redis."""

    def __init__(self, redis_url: str, log_dir: Path, **env: str) -> None:
        settings = {"UNBROKEN_REDIS__URL": redis_url, "UNBROKEN_LOG__FORMAT": "json", **env}
        self._env, self._log_dir = settings, log_dir
        worker = {**settings, **worker_env()}
        self.fast = Process("fast", worker_argv("fast", 2, "fast"), worker, "worker.ready", log_dir)
        self.slow = Process("slow", worker_argv("slow", 2, "slow"), worker, "worker.ready", log_dir)
        self.dispatcher = Process(
            "dispatcher", [sys.executable, "-m", "workers"], settings, "dispatcher.ready", log_dir
        )

    @property
    def all(self) -> tuple[Process, ...]:
        """All three processes."""
        return (self.fast, self.slow, self.dispatcher)

    def flower(self) -> tuple[Process, str]:
        """Return a Flower, not yet started, and its address."""
        port = free_port()
        env = {**self._env, **flower_env("127.0.0.1")}
        return Process("flower", flower_argv("127.0.0.1", port), env, "", self._log_dir), f"http://127.0.0.1:{port}"


@contextlib.contextmanager
def running_workers(redis_url: str, log_dir: Path, **env: str) -> Generator[WorkerSet]:
    """Start a worker set and yield it once everything is ready; stop it all afterwards."""
    workers = WorkerSet(redis_url, log_dir, **env)
    try:
        for process in workers.all:
            process.start()
        for process in workers.all:
            process.wait_ready()
        yield workers
    finally:
        for process in workers.all:
            process.stop()


async def until(ask: Callable[[], Awaitable[T]], what: str, timeout_s: float = 30.0) -> T:
    """Ask until the answer is truthy and return it; fail with `what` after the deadline."""
    end = time.monotonic() + timeout_s
    while True:
        answer = await ask()
        if answer:
            return answer
        assert time.monotonic() < end, f"not within {timeout_s} s: {what}"
        await asyncio.sleep(0.02)
