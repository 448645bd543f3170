"""Cancelled commands and demoted primaries: a reply is the asked one or none (cases G5-05, G5-07)."""

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncGenerator, Awaitable, Callable

import pytest

from recovery import jobs, leases, registry
from recovery.errors import StoreUnavailable
from recovery.registry import NodeState
from recovery.store import Store, node_key
from tests.rigs.ports import free_port
from tests.rigs.valkey import Valkey

_DELAY_S = 0.02
_NODES = "abcdefgh"


@pytest.fixture
async def slow_url(shared_valkey: Valkey, redis_url: str) -> AsyncGenerator[str]:
    """The shared server behind a proxy that holds each piece of a reply back for a while."""

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay: float) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65_536):
                await asyncio.sleep(delay)
                writer.write(data)
                await writer.drain()
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        to_server = await asyncio.open_connection("127.0.0.1", shared_valkey.port)
        await asyncio.gather(pump(reader, to_server[1], 0), pump(to_server[0], writer, _DELAY_S))

    server = await asyncio.start_server(serve, "127.0.0.1", port := free_port())
    try:
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        server.close()


async def test_a_cancelled_command_never_leaves_its_reply_to_another(store: Store, slow_url: str) -> None:
    """Hundreds of reads cut off at any moment; every reply that comes is the asked node's own (case G5-05)."""
    for number, name in enumerate(_NODES, 1):
        await leases.renew(store, name, f"holder-{name}", number, 600_000)
        await registry.register(store, name, number, {"model": f"model-{name}"})
    slow, draw, cut = Store(slow_url), random.Random(5), 0

    async def lease(name: str, _number: int) -> None:
        assert await slow.redis.get(node_key(name, "lease")) == f"holder-{name}|{_number}"

    async def raw(name: str, number: int) -> None:
        assert await slow.raw.get(node_key(name, "lease")) == f"holder-{name}|{number}".encode()

    async def epoch(name: str, number: int) -> None:
        assert await leases.current_epoch(slow, name) == number

    async def node(name: str, number: int) -> None:
        found = await registry.get(slow, name)
        assert (found.id, found.epoch, found.model) == (name, number, f"model-{name}")

    async def script(name: str, number: int) -> None:
        await leases.renew(slow, name, f"holder-{name}", number, 600_000)

    asks: list[Callable[[str, int], Awaitable[None]]] = [lease, raw, epoch, node, script]

    async def one() -> None:
        nonlocal cut
        number = draw.randrange(len(_NODES))
        ask = asyncio.ensure_future(draw.choice(asks)(_NODES[number], number + 1))
        if draw.random() < 0.6:
            await asyncio.wait([ask], timeout=draw.uniform(0, 2 * _DELAY_S))
            cut += ask.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await ask
        else:
            await ask

    async def many() -> None:
        for _ in range(40):
            await one()

    try:
        await asyncio.gather(*(many() for _ in range(16)))
    finally:
        await slow.aclose()
    assert cut > 100, "hardly anything was cancelled: nothing was shown"


async def test_a_demoted_primary_says_nothing_about_any_lease(own_valkey: Valkey) -> None:
    """Its connections stay open, every write is refused: unknown, not lost; and soon good again (case G5-07)."""
    store = Store(own_valkey.url)
    try:
        epoch = (await leases.boot(store, "a", "h", 0, 0, 60_000)).epoch
        await registry.register(store, "a", epoch, {"state": "ALIVE", "weight": 1.0})
        await store.redis.config_set("replica-serve-stale-data", "yes")
        await store.redis.replicaof("127.0.0.1", free_port())
        writes: list[Callable[[], Awaitable[object]]] = [
            lambda: leases.renew(store, "a", "h", epoch, 60_000),
            lambda: leases.fence(store, "a", epoch, "j"),
            lambda: registry.set_state(store, "a", epoch, NodeState.DEAD),
            lambda: jobs.create(store, "a", epoch, cause="c", evidence="e", started_by="s"),
        ]
        for write in writes:
            with pytest.raises(StoreUnavailable):
                await write()
        assert (await registry.get(store, "a")).state is NodeState.ALIVE
        assert await leases.remaining_ms(store, "a") > 0
        # When it is the primary again
        await store.redis.replicaof("NO", "ONE")
        began = time.monotonic()
        await leases.renew(store, "a", "h", epoch, 60_000)
        assert time.monotonic() - began < 5.0
        assert await leases.current_epoch(store, "a") == epoch
    finally:
        await store.aclose()


async def test_an_epoch_that_redis_has_rolled_back_still_only_grows(store: Store) -> None:
    """Two seconds of writes were lost with the old primary: agent and job know better, each by itself (case G5-07)."""
    epoch = (await leases.boot(store, "a", "h", 0, 0, 60_000)).epoch
    for number in range(3):
        epoch = await leases.fence(store, "a", epoch, f"j{number}")
    # When the counter is an old one again
    await store.redis.set(node_key("a", "epoch"), 1)
    # Then neither a fence by what is known, nor a renewal, nor a boot goes back
    assert await leases.fence(store, "a", epoch, "later") == epoch + 1
    await store.redis.set(node_key("a", "epoch"), 1)
    await leases.renew(store, "a", "h", epoch + 1, 60_000)
    assert await leases.current_epoch(store, "a") == epoch + 1
    await store.redis.set(node_key("a", "epoch"), 1)
    await registry.set_state(store, "a", 1, NodeState.STARTING)
    assert (await leases.boot(store, "a", "h", epoch + 1, 0, 60_000)).epoch == epoch + 2
