"""The agent's side of the helper process: a question has a deadline, and a helper that misses it is killed.

A sick driver holds its callers so that not even SIGKILL ends them; then no other one is started beside it.
"""

import asyncio
import contextlib
import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import structlog

from node.gpu.reading import Reading, XidEvent

_GOES_S = 1.0
"""Time a killed process gets to be gone; one that computes nothing needs milliseconds."""
_POLL_S = 0.02

log = structlog.get_logger()


class Silent(Exception):
    """The driver did not answer in time."""


@dataclass(frozen=True, slots=True)
class Deadlines:
    """How long an answer may take, s, counted from the moment the helper has the question."""

    answer: float = 2.0
    fresh: float = 10.0
    """The first answer of a helper: the driver may have to wake the GPU up."""
    cold: float = 30.0
    """The first answer of all: without persistence mode that is seconds for each GPU of the host."""
    begin: float = 60.0
    """Until the helper has the question: that is the machine's business, not the driver's."""


class Client:
    """Asks through one helper process at a time.

    `lock` is a file each helper holds from start to end, so that one stuck in the driver is known to every later agent.
    """

    def __init__(
        self, on_xid: Callable[[XidEvent], object], lock: Path | None = None, deadlines: Deadlines | None = None
    ) -> None:
        self._on_xid = on_xid
        self._lock = lock
        self._deadlines = deadlines or Deadlines()
        self._helper: _Helper | None = None
        self._stuck: subprocess.Popen[bytes] | None = None
        self._answered = False

    @property
    def pids(self) -> list[int]:
        """The helper processes that may live: never more than one."""
        process = self._helper.process if self._helper else self._stuck
        return [process.pid] if process else []

    async def ask(self, wanted: Sequence[str] | None) -> Reading:
        """Read the GPUs. Raises Silent: no answer in time, or a helper that was killed for this still lives."""
        if self._helper is None:
            self._helper = await self._start()
        helper, limits = self._helper, self._deadlines
        within = limits.answer if helper.answered else limits.fresh if self._answered else limits.cold
        try:
            reading = await helper.ask(wanted, limits.begin, within)
        except EOFError as error:
            await self.let_go()
            return Reading("failing", str(error))
        except TimeoutError as error:
            await self.let_go()
            raise Silent(str(error)) from error
        self._answered = True
        return reading

    async def let_go(self) -> None:
        """End the helper: a GPU can be reset only while nobody has its driver open."""
        process = self._kill()
        if process is not None and await self._goes(process, _GOES_S):
            self._stuck = None

    def close(self) -> None:
        """End the helper at once, waiting for nothing."""
        process = self._kill()
        if process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.1)

    def _kill(self) -> "subprocess.Popen[bytes] | None":
        helper, self._helper = self._helper, None
        if helper is not None:
            helper.close()
            helper.process.kill()
            self._stuck = helper.process
        return self._stuck

    async def _start(self) -> "_Helper":
        if self._stuck is not None:
            if not await self._goes(self._stuck, self._deadlines.answer):
                raise Silent(f"the helper with pid {self._stuck.pid}, though killed, still hangs in the driver")
            self._stuck = None
        end = time.monotonic() + self._deadlines.answer
        while (held := self._take_lock()) is None:
            if time.monotonic() > end:
                raise Silent("an earlier helper of this node still hangs in the driver")
            await asyncio.sleep(_POLL_S)
        try:
            return _Helper(self._on_xid, held)
        finally:
            for fd in held:
                os.close(fd)

    def _take_lock(self) -> list[int] | None:
        """Return the descriptors the helper must inherit; None while another one has the lock."""
        if self._lock is None:
            return []
        fd = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
            return None
        return [fd]

    async def _goes(self, process: "subprocess.Popen[bytes]", within_s: float) -> bool:
        end = time.monotonic() + within_s
        while process.poll() is None:
            if time.monotonic() > end:
                return False
            await asyncio.sleep(_POLL_S)
        return True


class _Helper:
    """One helper process and its pipes."""

    def __init__(self, on_xid: Callable[[XidEvent], object], inherited: Sequence[int]) -> None:
        self.answered = False
        self._on_xid = on_xid
        self._loop = asyncio.get_running_loop()
        self._buffer = b""
        self._asked = 0
        self._begun: asyncio.Future[None] = self._loop.create_future()
        self._answer: asyncio.Future[Reading] = self._loop.create_future()
        self._ended = ""
        # Settings may hold secrets: this process needs none of them.
        env = {name: value for name, value in os.environ.items() if not name.startswith("UNBROKEN_")}
        questions, self._in = os.pipe()
        self._out, answers = os.pipe()
        os.set_blocking(self._out, False)
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "node.gpu.helper"], env=env, pass_fds=inherited, start_new_session=True,
                stdin=questions, stdout=answers, stderr=subprocess.DEVNULL,
            )  # fmt: skip
        except OSError:
            os.close(self._in)
            os.close(self._out)
            raise
        finally:
            os.close(questions)
            os.close(answers)
        self._loop.add_reader(self._out, self._read)

    async def ask(self, wanted: Sequence[str] | None, begin_s: float, within_s: float) -> Reading:
        """Ask once. Raises TimeoutError, EOFError (the helper has ended)."""
        self._asked += 1
        self._begun, self._answer = self._loop.create_future(), self._loop.create_future()
        try:
            # One line is far less than a pipe holds, and nothing else is in it: this never blocks.
            os.write(self._in, orjson.dumps({"ask": self._asked, "wanted": wanted}) + b"\n")
        except OSError as error:
            raise EOFError(f"the helper has ended: {error.strerror}") from error
        await self._wait(self._begun, begin_s, "the helper does not get to run")
        await self._wait(self._answer, within_s, "the driver does not answer")
        self.answered = True
        return self._answer.result()

    async def _wait(self, what: "asyncio.Future[Any]", within_s: float, complaint: str) -> None:
        if not self._ended:
            await asyncio.wait({what}, timeout=within_s)
        if self._ended:
            raise EOFError(self._ended)
        if not what.done():
            raise TimeoutError(f"{complaint} within {within_s:g} s")

    def close(self) -> None:
        """Let go of the pipes."""
        self._loop.remove_reader(self._out)
        os.close(self._in)
        os.close(self._out)

    def _read(self) -> None:
        try:
            chunk = os.read(self._out, 65_536)
        except BlockingIOError:
            return
        if not chunk:
            self._loop.remove_reader(self._out)
            self._ended = f"the helper has ended with exit code {self.process.poll()}"
            for what in (self._begun, self._answer):
                what.cancel()
            return
        *lines, self._buffer = (self._buffer + chunk).split(b"\n")
        for line in lines:
            try:
                self._take(orjson.loads(line))
            except (ValueError, KeyError, TypeError) as error:
                log.warning("gpu.helper_unclear", error=repr(error))

    def _take(self, message: dict[str, Any]) -> None:
        if "xid" in message:
            self._on_xid(XidEvent(**message["xid"]))
        elif message.get("begun") == self._asked and not self._begun.done():
            self._begun.set_result(None)
        elif message.get("answer") == self._asked and not self._answer.done():
            self._answer.set_result(Reading.load(message["reading"]))
