"""The registrar against a real Redis-compatible server: entries true through loss and absence."""

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator

from node.registrar import Registrar
from recovery import leases, registry
from recovery.registry import NodeState
from recovery.store import Store
from tests.rigs.agent import until
from tests.rigs.valkey import Valkey


class Described:
    """What a node would say of itself."""

    def __init__(self, store: Store, epoch: int) -> None:
        self.epoch = epoch
        self.fields: dict[str, str | int | float | bool] = {"agent": "127.0.0.1:1"}
        self.forgotten = 0
        self.registrar = Registrar(store, "a", lambda: (self.epoch, self.fields), self.forget)

    def forget(self) -> None:
        """Count how often Redis was found to know nothing."""
        self.forgotten += 1

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator["Described"]:
        """Run the registrar."""
        task = asyncio.create_task(self.registrar.run())
        try:
            yield self
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def test_what_is_announced_is_written_and_the_state_left_alone(store: Store) -> None:
    """The state is the sentinel's; only a node nobody knows begins as STARTING."""
    await leases.boot(store, "a", "me", 0, 0, 5_000)
    async with Described(store, 1).running() as node:
        node.registrar.announce()
        assert await node.registrar.settled(5)
        assert (await registry.get(store, "a")).state is NodeState.STARTING

        await registry.set_state(store, "a", 1, NodeState.ALIVE, weight=1.0)
        node.fields["engine_url"] = "http://127.0.0.1:2"
        node.registrar.announce()
        assert await node.registrar.settled(5)

    written = await registry.get(store, "a")
    assert (written.engine_url, written.state, written.weight) == ("http://127.0.0.1:2", NodeState.ALIVE, 1.0)


async def test_an_emptied_redis_is_noticed_even_while_writes_are_refused(store: Store) -> None:
    """The epoch is gone as well, so every write is stale until somebody boots the node again."""
    await leases.boot(store, "a", "me", 0, 0, 5_000)
    async with Described(store, 1).running() as node:
        node.registrar.announce()
        assert await node.registrar.settled(5)
        await store.redis.flushall()
        node.registrar.announce()

        async def told() -> bool:
            return node.forgotten >= 2

        await until(told)
        assert not await node.registrar.settled(0.01)
        await leases.boot(store, "a", "me", 1, 0, 5_000)
        node.epoch = 2
        assert await node.registrar.settled(5)

    assert (await registry.get(store, "a")).epoch == 2


async def test_a_redis_that_came_back_an_epoch_behind_is_taught_the_node_anew(store: Store) -> None:
    """It lost its last writes, the recovery among them: the entry goes on from STARTING, under the new epoch."""
    await leases.boot(store, "a", "me", 0, 0, 60_000)
    async with Described(store, 1).running() as node:
        node.registrar.announce()
        assert await node.registrar.settled(5)
        await registry.set_state(store, "a", 1, NodeState.DEAD)
        # When a recovery has come and gone that Redis knows nothing of any more
        node.epoch, node.fields["engine_url"] = 2, "http://127.0.0.1:2"

        async def told() -> bool:
            return node.forgotten >= 1

        await until(told)
        await leases.renew(store, "a", "me", 2, 60_000)
        assert await node.registrar.settled(10)

    written = await registry.get(store, "a")
    assert (written.epoch, written.state, written.engine_url) == (2, NodeState.STARTING, "http://127.0.0.1:2")


async def test_a_write_waits_for_redis_to_come_back(own_valkey: Valkey) -> None:
    """Nothing is lost by an absence."""
    store = Store(own_valkey.url, 300)
    try:
        await leases.boot(store, "a", "me", 0, 0, 60_000)
        own_valkey.stop(signal.SIGTERM)
        async with Described(store, 1).running() as node:
            node.registrar.announce()
            assert not await node.registrar.settled(0.5)
            own_valkey.start()
            assert await node.registrar.settled(10)
    finally:
        await store.aclose()
