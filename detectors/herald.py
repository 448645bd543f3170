"""Tells Redis what one node's watch decides, as far as that is its to tell; keeps it until Redis takes it."""

import time
from collections.abc import Callable

import structlog

from detectors import announce
from detectors.docket import JUDGED
from detectors.evidence import ChangeState, Dead
from detectors.fleet import Fleet
from detectors.outbox import Outbox, Posting
from detectors.seat import Seat
from recovery import registry
from recovery.errors import StaleEpoch, StoreUnavailable
from recovery.registry import Node

log = structlog.get_logger()


class Herald:
    """One node's. `observe` is told what the registry says instead; `withdraw`, that a verdict cannot be checked."""

    def __init__(
        self,
        fleet: Fleet,
        node: str,
        seat: Seat,
        observe: Callable[[Node], None],
        withdraw: Callable[[], None],
    ) -> None:
        self._fleet = fleet
        self._node = node
        self._seat = seat
        self._observe = observe
        self._withdraw = withdraw
        self._outbox = Outbox(self._publish)
        self._verdict = Posting(0, Dead("unknown", "", proof=True))
        """The last one, in case Redis loses it."""

    @property
    def quiet_s(self) -> float:
        """Seconds since the last posting went out; 0 while one waits."""
        return self._outbox.quiet_s

    async def run(self) -> None:
        """Publish until cancelled."""
        await self._outbox.run()

    def death(self, epoch: int, verdict: Dead) -> None:
        """Have a verdict published, whoever the primary is."""
        self._verdict = Posting(epoch, verdict)
        self._outbox.put(self._verdict)

    def change(self, epoch: int, change: ChangeState) -> None:
        """Have a state or weight written, by the primary alone."""
        if self._seat.primary:
            self._outbox.put(Posting(epoch, change))

    def death_again(self) -> None:
        """Have the last verdict published once more."""
        self._outbox.put(self._verdict)

    def stood_dead(self, node: Node) -> None:
        """Publish a found death: its verdict may have been lost with its sentinel; jobs take it once only."""
        evidence = node.extra.get("evidence") or "stood dead when this sentinel took the node over"
        wall_ms = int(node.extra.get("dead_ms") or time.time() * 1_000)
        took_s = float(node.extra.get("took_ms") or 0) / 1e3
        self._verdict = Posting(node.epoch, Dead(node.cause or "unknown", evidence, proof=True, took_s=took_s), wall_ms)
        self._outbox.put(self._verdict)

    async def _publish(self, posting: Posting) -> None:
        node, what = self._node, posting.what
        try:
            if isinstance(what, ChangeState):
                if self._seat.primary:
                    await announce.state(self._fleet, node, posting.epoch, what)
            elif (what.proof and self._seat.primary) or await self._stands(posting.epoch, proof=what.proof):
                await announce.death(self._fleet, node, posting, what)
        except StaleEpoch as error:
            log.info("sentinel.overtaken", node=node, epoch=posting.epoch, current=error.current)

    async def _stands(self, epoch: int, *, proof: bool) -> bool:
        """Whether a verdict still makes sense.

        Silence is also what an orderly stop or a fence looks like; and another sentinel may have been first.
        """
        try:
            node = await registry.get(self._fleet.store, self._node)
        except StoreUnavailable:
            if proof:
                raise
            self._withdraw()
            return False
        if node.epoch == epoch and node.state in JUDGED:
            return True
        self._observe(node)
        return False
