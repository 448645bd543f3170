"""When the stack's own processes saw a death: the sentinel's verdict in Redis, and the gateway's table after it."""

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO

from recovery import events
from recovery.errors import StoreUnavailable
from recovery.store import Store

_READ_S = 3.0
_AGAIN_S = 0.1


@dataclass(frozen=True, slots=True)
class Verdict:
    """One `node.dead` event."""

    node: str
    epoch: int
    cause: str
    evidence: str
    wall_ms: int
    """Redis's clock when it took the event in, ms since 1970."""


class Sightings:
    """Reads a stack's log and its events stream."""

    def __init__(self, log: IO[str]) -> None:
        self.verdicts: dict[tuple[str, int], Verdict] = {}
        """The first one of each node and epoch."""
        self._log = log
        self._out: dict[tuple[str, int], int] = {}
        self._news = asyncio.Event()

    def sink(self, process: str, line: str) -> None:
        """Take a line of a process's output."""
        print(f"{time.time():.3f} {process} | {line}", file=self._log)
        if process == "gateway" and "routing.node_out" in line:
            fields = json.loads(line)
            self._out.setdefault((fields["node"], fields["epoch"]), fields["monotonic_ns"])
            self._news.set()

    async def follow(self, redis: str) -> None:
        """Read the events stream until cancelled."""
        store, after = Store(redis), "0-0"
        try:
            while True:
                try:
                    async with store.reader() as reader:
                        while True:
                            async with asyncio.timeout(_READ_S):
                                read = await events.read(reader, after)
                            for event in read:
                                after = event.id
                                self._note(event)
                except (StoreUnavailable, TimeoutError):
                    await asyncio.sleep(_AGAIN_S)
        finally:
            await store.aclose()

    async def out_ns(self, node: str, epoch: int, timeout: float) -> int | None:
        """Return the monotonic ns at which the gateway's table had given (node, epoch) weight 0, or None."""
        await self._until(lambda: (node, epoch) in self._out, timeout)
        return self._out.get((node, epoch))

    async def verdict(self, node: str, epoch: int, timeout: float = 3.0) -> Verdict | None:
        """Return the verdict on (node, epoch), or None when the stream has none in time."""
        await self._until(lambda: (node, epoch) in self.verdicts, timeout)
        return self.verdicts.get((node, epoch))

    async def _until(self, seen: Callable[[], bool], timeout: float) -> None:
        end = time.monotonic() + timeout
        while not seen():
            self._news.clear()
            try:
                async with asyncio.timeout(end - time.monotonic()):
                    await self._news.wait()
            except TimeoutError:
                return

    def _note(self, event: events.Event) -> None:
        if event.kind == events.Kind.NODE_DEAD:
            fields = event.fields
            verdict = Verdict(
                event.node,
                event.epoch,
                fields.get("cause", ""),
                fields.get("evidence", ""),
                int(event.id.split("-")[0]),
            )
            self.verdicts.setdefault((event.node, event.epoch), verdict)
            self._news.set()
