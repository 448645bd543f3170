"""What every request of one gateway shares: settings, routing table, journal writer, figures, running streams."""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from api.errors import unavailable
from api.journaling import JournalWriter
from api.metrics import Metrics
from api.routing import RoutingTable
from recovery.config import Settings
from recovery.registry import Node
from recovery.store import Store

if TYPE_CHECKING:
    from api.streams import Stream

Failed = tuple[Node, str]
"""A node that answered a request with an error of its own, and which."""


@dataclass(slots=True)
class Context:
    """One gateway's shared parts; `api.app` makes and closes them."""

    id: str
    settings: Settings
    store: Store
    table: RoutingTable
    journal: JournalWriter
    metrics: Metrics
    streams: "dict[str, Stream]" = field(default_factory=dict)
    queued: int = 0
    accepting: bool = True
    """False once the gateway is stopping."""

    @contextmanager
    def queue_place(self) -> Generator[None]:
        """Take a place among the requests that wait for a node. Raises ApiError (503) when all are taken."""
        if self.queued >= self.settings.limits.queue:
            raise unavailable("too many requests are waiting for a node", "queue_full")
        self.queued += 1
        self.metrics.queued.inc()
        try:
            yield
        finally:
            self.queued -= 1
            self.metrics.queued.dec()

    def blame(self, failed: list[Failed], served_by: Node, request: str) -> None:
        """Hold a request against the nodes that failed it, now that another one has served it; empties the list."""
        for node, reason in failed:
            if node.id != served_by.id and self.table.blame(node):
                self.journal.evidence(node.id, node.epoch, request, f"failed request after request: {reason[:200]}")
        failed.clear()
