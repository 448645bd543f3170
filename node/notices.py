"""Notices to every open Watch stream, each through a bounded queue of its own.

A stream that does not take them is ended: its sentinel reconnects and reads the phase instead.
"""

import asyncio
import time
from collections.abc import Generator
from contextlib import contextmanager

from protocol import unbroken_pb2 as pb

_QUEUE = 64

Outgoing = asyncio.Queue["pb.Notice | tuple[int, pb.Ping] | None"]
"""What a stream still has to send: a notice, a ping read at a monotonic time in ns, or None: the end."""


class Notices:
    """The open streams."""

    def __init__(self) -> None:
        self._streams: set[Outgoing] = set()

    @contextmanager
    def subscribe(self) -> Generator[Outgoing]:
        """Lend a queue that gets every notice from now on."""
        queue: Outgoing = asyncio.Queue(_QUEUE)
        self._streams.add(queue)
        try:
            yield queue
        finally:
            self._streams.discard(queue)

    def send(self, kind: pb.NoticeKind, epoch: int, cause: str = "", evidence: str = "") -> None:
        """Put a notice on every stream at once."""
        self._put(pb.Notice(kind=kind, epoch=epoch, cause=cause, evidence=evidence, wall_ms=int(time.time() * 1_000)))

    def close(self) -> None:
        """Tell every stream to end after what is queued."""
        self._put(None)

    def _put(self, item: pb.Notice | None) -> None:
        for queue in list(self._streams):
            try:
                queue.put_nowait(item)
            except asyncio.QueueFull:
                self._streams.discard(queue)
                while not queue.empty():
                    queue.get_nowait()
                queue.put_nowait(None)
