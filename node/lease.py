"""Keeps the node's lease: renews it, and says at once when the node was fenced (requirements D3).

Redis away is no reason to stop an engine; a higher epoch is.
"""

import asyncio
import time
from collections.abc import Callable

import structlog

from recovery import leases
from recovery.config import LeaseSettings
from recovery.errors import LeaseHeld, StaleEpoch, StoreUnavailable
from recovery.store import Store

log = structlog.get_logger()


class LeaseKeeper:
    """Holds the lease of one node under the epoch last claimed."""

    def __init__(
        self, store: Store, node: str, holder: str, settings: LeaseSettings, on_stale: Callable[[int], None]
    ) -> None:
        self._store = store
        self._node = node
        self._holder = holder
        self._settings = settings
        self._on_stale = on_stale
        self._epoch: int | None = None
        self._renewed = 0.0
        self._trouble = ""

    @property
    def held(self) -> bool:
        """Whether the lease is surely ours now."""
        return self._epoch is not None and time.monotonic() - self._renewed < self._settings.lease_timeout_ms / 1_000

    @property
    def claimed(self) -> bool:
        """Whether we act for the node, be the lease renewed in time or not."""
        return self._epoch is not None

    def claim(self, epoch: int, *, renewed: bool = False) -> None:
        """Keep the lease under `epoch` from now on; `renewed` says that it was just taken."""
        if self._epoch != epoch:
            self._renewed = 0.0
        self._epoch = epoch
        if renewed:
            self._renewed = time.monotonic()

    def drop(self) -> None:
        """Claim nothing any more."""
        self._epoch = None
        self._renewed = 0.0

    async def take(self, epoch: int) -> None:
        """Claim the lease under `epoch` now. Raises StaleEpoch, LeaseHeld; Redis away is tried again later."""
        self.claim(epoch)
        try:
            await self._renew(epoch)
        except (StaleEpoch, LeaseHeld):
            self.drop()
            raise
        except StoreUnavailable as error:
            self._say(str(error))

    async def run(self) -> None:
        """Renew every interval until cancelled."""
        interval = self._settings.renew_interval_ms / 1_000
        while True:
            began = time.monotonic()
            if self._epoch is not None:
                await self._once(self._epoch)
            await asyncio.sleep(max(0.01, interval - (time.monotonic() - began)))

    async def release(self) -> None:
        """Give the lease up at an orderly stop. Raises StoreUnavailable."""
        epoch, self._epoch = self._epoch, None
        if epoch is not None:
            await leases.release(self._store, self._node, self._holder, epoch)

    async def _once(self, epoch: int) -> None:
        try:
            await self._renew(epoch)
        except StoreUnavailable as error:
            self._say(str(error))
        except LeaseHeld as error:
            self._renewed = 0.0
            self._say(str(error))
        except StaleEpoch as error:
            # A command may have moved the claim on while Redis answered.
            if self._epoch == epoch:
                self.drop()
                self._on_stale(error.current)

    async def _renew(self, epoch: int) -> None:
        began = time.monotonic()
        await leases.renew(self._store, self._node, self._holder, epoch, self._settings.lease_timeout_ms)
        if self._epoch == epoch:
            # Counted from before the call: Redis may have granted it that early.
            self._renewed = began
        if self._trouble:
            log.info("lease.renewed_again", node=self._node, epoch=epoch)
            self._trouble = ""

    def _say(self, trouble: str) -> None:
        if not self._trouble:
            log.warning("lease.not_renewed", node=self._node, error=trouble)
        self._trouble = trouble
