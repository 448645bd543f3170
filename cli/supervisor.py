"""Starts the processes of a stack, restarts what dies, prefixes their output, and stops all of them cleanly."""

import asyncio
import contextlib
import ctypes
import os
import signal
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

import structlog

from recovery.errors import UnbrokenError

log = structlog.get_logger()

CONFIGURATION_ERROR = 2
"""Exit code that says: starting me again will not help."""
_LINE_LIMIT = 64 * 1024
_PR_SET_PDEATHSIG = 1
_BACKOFF_S = (0.1, 0.5, 1.0, 2.0, 5.0)

Sink = Callable[[str, str], None]
"""Takes (process name, line)."""


class StackFailed(UnbrokenError):
    """A process of the stack cannot be kept running."""


@dataclass(frozen=True, slots=True)
class Child:
    """A process of the stack."""

    name: str
    argv: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    ready: Callable[[], Awaitable[bool]] | None = None
    """Asked until True before the next stage starts."""
    grace_s: float = 8.0
    """Time between TERM and KILL."""


class Supervisor:
    """Owns the processes it started. Stages start in order and stop in reverse order."""

    def __init__(self, sink: Sink, *, restarts: int, period_s: float) -> None:
        self._sink = sink
        self._restarts = restarts
        self._period_s = period_s
        self._stages: list[list[_Keeper]] = []
        self._failure: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def start_stage(self, children: Sequence[Child], timeout: float) -> None:
        """Start processes that may start together and wait until all are ready. Raises StackFailed."""
        stage = [_Keeper(child, self._sink, self._restarts, self._period_s, self._fail) for child in children]
        self._stages.append(stage)
        for keeper in stage:
            keeper.start()
        try:
            async with asyncio.TaskGroup() as group:
                for keeper in stage:
                    group.create_task(self._wait_ready(keeper.child, timeout))
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None

    async def failed(self) -> str:
        """Wait until the stack cannot be kept running; return why."""
        return await asyncio.shield(self._failure)

    def pid(self, name: str) -> int | None:
        """Return the pid of a running process of the stack, or None."""
        keepers = [keeper for stage in self._stages for keeper in stage if keeper.child.name == name]
        return keepers[0].pid if keepers else None

    async def stop(self) -> None:
        """Stop everything, last stage first; leave no process behind."""
        while self._stages:
            stage = self._stages.pop()
            async with asyncio.TaskGroup() as group:
                for keeper in stage:
                    group.create_task(keeper.stop())

    def _fail(self, reason: str) -> None:
        if not self._failure.done():
            self._failure.set_result(reason)

    async def _wait_ready(self, child: Child, timeout: float) -> None:
        if child.ready is None:
            return
        deadline = time.monotonic() + timeout
        while not await child.ready():
            if self._failure.done():
                raise StackFailed(self._failure.result())
            if time.monotonic() > deadline:
                raise StackFailed(f"{child.name} was not ready within {timeout:g} s; its last lines are above")
            await asyncio.sleep(0.05)


class _Keeper:
    """Keeps one process running."""

    def __init__(self, child: Child, sink: Sink, restarts: int, period_s: float, fail: Callable[[str], None]) -> None:
        self.child = child
        self._sink = sink
        self._restarts = restarts
        self._period_s = period_s
        self._fail = fail
        self._process: asyncio.subprocess.Process | None = None
        self._task: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()
        self._tail: deque[str] = deque(maxlen=5)

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process and self._process.returncode is None else None

    def start(self) -> None:
        self._task = asyncio.create_task(self._keep(), name=f"keep {self.child.name}")

    async def stop(self) -> None:
        self._stopping.set()
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                async with asyncio.timeout(self.child.grace_s):
                    await self._process.wait()
            except TimeoutError:
                log.warning("process.killed", child=self.child.name, grace_s=self.child.grace_s)
                self._kill_group()
                await self._process.wait()
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _keep(self) -> None:
        starts: deque[float] = deque()
        while not self._stopping.is_set():
            starts.append(time.monotonic())
            while starts[0] < starts[-1] - self._period_s:
                starts.popleft()
            try:
                code = await self._run_once()
            except OSError as error:
                self._fail(f"{self.child.name} cannot be started: {error}")
                return
            if self._stopping.is_set():
                return
            log.warning("process.ended", child=self.child.name, code=code)
            if code == CONFIGURATION_ERROR:
                self._fail(f"{self.child.name} refused to start: {self._last_words()}")
                return
            if len(starts) > self._restarts:
                self._fail(
                    f"{self.child.name} ended {len(starts)} times within {self._period_s:g} s "
                    f"(last exit code {code}): {self._last_words()}"
                )
                return
            await asyncio.sleep(_BACKOFF_S[min(len(starts), len(_BACKOFF_S)) - 1])

    async def _run_once(self) -> int:
        process = await asyncio.create_subprocess_exec(
            *self.child.argv,
            env={**os.environ, **self.child.env},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            # A session of its own: Ctrl-C on the terminal reaches only the supervisor, which stops in order.
            start_new_session=True,
            preexec_fn=_end_with_parent,
            limit=_LINE_LIMIT,
        )
        self._process = process
        try:
            await self._forward(process)
            return await process.wait()
        finally:
            self._kill_group()

    async def _forward(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None  # noqa: S101 - for the type checker: stdout=PIPE above
        while True:
            try:
                line = await process.stdout.readline()
            except ValueError:  # longer than the limit: drop what was read of it
                continue
            if not line:
                return
            text = line.decode("utf-8", "replace").rstrip()
            self._tail.append(text)
            self._sink(self.child.name, text)

    def _last_words(self) -> str:
        return self._tail[-1] if self._tail else "it said nothing"

    def _kill_group(self) -> None:
        """End what the process may have left of its own group (Celery's children when it was killed)."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)


_libc = ctypes.CDLL(None, use_errno=True)


def _end_with_parent() -> None:
    """In the child, before exec: a supervisor that is killed must not leave its stack running."""
    if hasattr(_libc, "prctl"):
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
