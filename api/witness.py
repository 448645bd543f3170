"""The gateway as a witness: tells the sentinels which engines give it tokens, and which fell silent under its streams.

Redis away costs nothing but the message: what is not sent at once is dropped.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence

import structlog

from api.pulses import Pulses, Stall
from recovery import events
from recovery.errors import StoreUnavailable
from recovery.stopping import stop_tasks
from recovery.store import Store

log = structlog.get_logger()

TICK_S = 0.05
TOKENS_S = 0.2
"""Pause between two messages about tokens."""
_MAX_UNSENT = 100
_LATE = 2.0
"""Own ticks further apart than so many pauses mean that the loop was blocked, and heard nothing meanwhile."""


class Witness:
    """Looks at the pulses until `run` is cancelled."""

    def __init__(self, store: Store, gateway: str, pulses: Pulses) -> None:
        self._store = store
        self._gateway = gateway
        self._pulses = pulses
        self._sending: asyncio.Task[None] | None = None
        self._unsent: list[Stall] = []

    async def run(self) -> None:
        """Look every `TICK_S`; say something only when there is something to say."""
        looked = told = time.monotonic()
        try:
            while True:
                await asyncio.sleep(TICK_S)
                now = time.monotonic()
                if now - looked > _LATE * TICK_S:
                    self._pulses.slept(now)
                looked = now
                stalls = self._pulses.stalls(now)
                for stall in stalls:
                    log.info(
                        "upstream.stalled", node=stall.node, epoch=stall.epoch, streams=stall.streams,
                        stood_ms=round(stall.stood_s * 1_000), usual_ms=round(stall.usual_s * 1_000),
                    )  # fmt: skip
                self._unsent = (self._unsent + stalls)[-_MAX_UNSENT:]
                ages: Mapping[str, int] = {}
                if now - told >= TOKENS_S:
                    told, ages = now, self._pulses.ages_ms(now)
                if (ages or self._unsent) and (self._sending is None or self._sending.done()):
                    unsent, self._unsent = self._unsent, []
                    self._sending = asyncio.create_task(self._send(ages, unsent))
        finally:
            if self._sending is not None:
                await stop_tasks(self._sending)

    async def _send(self, ages: Mapping[str, int], stalls: Sequence[Stall]) -> None:
        try:
            for stall in stalls:
                evidence = (
                    f"{stall.streams} streams got nothing for {stall.stood_s * 1_000:.0f} ms, "
                    f"usual gap {stall.usual_s * 1_000:.0f} ms"
                )
                fields: dict[str, str | int | float] = {
                    "node": stall.node, "epoch": stall.epoch, "evidence": evidence, "gateway": self._gateway,
                }  # fmt: skip
                await events.publish(self._store, events.Kind.UPSTREAM_STALLED, fields)
            if ages:
                await events.publish_tokens(self._store, self._gateway, ages)
        except StoreUnavailable:
            log.debug("witness.redis_away")
