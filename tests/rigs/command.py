"""Runs `unbroken …` as a process of its own, the way a user does."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path


class Command:
    """A running `unbroken` command whose output is collected."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.output = ""
        self._reader = asyncio.create_task(self._read())

    async def said(self, words: str, timeout: float = 90.0) -> None:
        """Wait until the output holds some words."""
        deadline = time.monotonic() + timeout
        while words not in self.output:
            assert self.process.returncode is None, f"it ended with {self.process.returncode}:\n{self.output}"
            assert time.monotonic() < deadline, f"it did not say {words!r} within {timeout:g} s:\n{self.output}"
            await asyncio.sleep(0.05)

    async def ended(self, timeout: float = 90.0) -> int:
        """Wait for its end and return the exit code."""
        async with asyncio.timeout(timeout):
            code = await self.process.wait()
            await self._reader
        return code

    async def close(self) -> None:
        """End it if it still runs."""
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                async with asyncio.timeout(30):
                    await self.process.wait()
            except TimeoutError:
                self.process.kill()
                await self.process.wait()
        await self._reader

    async def _read(self) -> None:
        assert self.process.stdout is not None
        while data := await self.process.stdout.read(65_536):
            self.output += data.decode("utf-8", "replace")


@asynccontextmanager
async def unbroken(*arguments: str, env: Mapping[str, str], cwd: Path) -> AsyncGenerator[Command]:
    """Start `unbroken` with arguments in a folder; end it at the end of the block."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "cli.main", *arguments,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), **env},
        cwd=cwd, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    command = Command(process)
    try:
        yield command
    finally:
        await command.close()


def processes_naming(text: str) -> dict[int, str]:
    """Return the processes (zombies aside) whose command line or environment holds a text, e.g. a state directory."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
            environment = (entry / "environ").read_bytes().decode("utf-8", "replace")
        except OSError:
            continue
        if command and (text in command or text in environment):
            found[int(entry.name)] = command
    return found
