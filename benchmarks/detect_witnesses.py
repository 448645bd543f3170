"""What others would see of the same fault: a TCP connection held open to the engine, and a poll of /health."""

import asyncio
import contextlib
import random
import time

import aiohttp

from cli.faults import FaultFailed

POLL_EVERY_S = 3.0
POLL_TIMEOUT_S = 1.0
_CONNECT_S = 3.0
_SLACK_S = 0.1
"""For a first poll that came just before the fault: another one follows."""


class TcpWitness:
    """A connection to the engine that waits for its end."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.ended_ns = 0
        """When the connection ended, monotonic; 0: it has not."""
        self._writer = writer
        self._waiting = asyncio.create_task(self._wait(reader))

    @classmethod
    async def connect(cls, host: str, port: int) -> "TcpWitness":
        """Connect. Raises OSError, TimeoutError."""
        async with asyncio.timeout(_CONNECT_S):
            return cls(*await asyncio.open_connection(host, port))

    async def close(self) -> None:
        """Stop waiting."""
        self._waiting.cancel()
        await asyncio.gather(self._waiting, return_exceptions=True)
        # An abort, not a close: over a cut link a close would linger.
        self._writer.transport.abort()

    async def _wait(self, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(OSError):
            await reader.read(1)
        self.ended_ns = time.monotonic_ns()


class PollWitness:
    """Polls /health on a connection of its own each time; one failure is enough, which favours polling."""

    def __init__(self, url: str) -> None:
        self.failed_ns = 0
        """When the first poll had failed, monotonic; 0: none has."""
        self.passed = 0
        """Polls that were answered after the fault."""
        self._url = url + "/health"

    async def check(self) -> None:
        """Poll once, before the fault. Raises FaultFailed when that already fails."""
        if not await self.passes():
            raise FaultFailed(f"{self._url} did not answer before the fault")

    async def watch(self, since: float, rng: random.Random, seconds: float = POLL_EVERY_S + _SLACK_S) -> None:
        """Poll for some seconds from a random moment of the period after `since` (monotonic s) on, until one fails."""
        due = since + rng.uniform(0, POLL_EVERY_S)
        while due < since + seconds:
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            if not await self.passes():
                self.failed_ns = time.monotonic_ns()
                return
            self.passed += 1
            due += POLL_EVERY_S

    async def passes(self) -> bool:
        """Poll once."""
        timeout = aiohttp.ClientTimeout(total=POLL_TIMEOUT_S)
        connector = aiohttp.TCPConnector(force_close=True)
        try:
            async with (
                aiohttp.ClientSession(connector=connector, timeout=timeout) as session,
                session.get(self._url) as response,
            ):
                return response.status == 200
        except (aiohttp.ClientError, TimeoutError, OSError):
            return False
