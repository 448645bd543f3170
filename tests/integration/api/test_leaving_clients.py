"""Clients that leave, at every moment of a request's life: the right engine is free again at once (case G6-06)."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from recovery import events
from recovery.store import Store
from tests.rigs.fake_llamacpp import FakeLlamaCpp, fake_llamacpp
from tests.rigs.gateway import MODEL, RunningGateway, register, running_gateway, until
from tests.rigs.streams import collect_raw

_ASK: dict[str, Any] = {"model": MODEL, "prompt": [1, 2, 3], "max_tokens": 50, "temperature": 0}


@contextlib.asynccontextmanager
async def _leaving(gateway: RunningGateway, **fields: Any) -> AsyncIterator[None]:
    """A client that asks, reads what comes, and hangs up at the end of the block."""
    async with aiohttp.ClientSession() as session:

        async def ask() -> None:
            async with session.post(f"{gateway.url}/v1/completions", json={**_ASK, **fields}) as answer:
                await answer.read()

        asking = asyncio.create_task(ask())
        try:
            yield
            assert not asking.done(), "the answer came before the client left"
        finally:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)


async def _forgotten(gateway: RunningGateway, store: Store, *engines: FakeLlamaCpp) -> None:
    """Nothing of the request is left: no generation, no slot, no journal; and nobody calls a node dead for it."""

    async def nothing() -> bool:
        keys = await store.redis.keys("unbroken:{request:*")
        return not keys and not any(engine.live for engine in engines)

    await until(nothing, 1.0)
    assert await gateway.metric("unbroken_requests_running") == 0
    # The next request finds every slot free.
    for engine in engines:
        engine.first_token, engine.fate = None, ""
    got = await collect_raw(gateway.session, gateway.url, _ASK, path="completions")
    assert (got.error, len(got.ids)) == ("", 50)
    kinds = [fields["kind"] for _, fields in await store.redis.xrange("unbroken:events")]
    assert events.Kind.NODE_DEAD not in kinds
    assert await store.redis.keys("unbroken:{job:*") == []


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("after", [0, 5])
async def test_a_client_that_leaves_before_or_after_the_first_token(
    redis_url: str, store: Store, *, stream: bool, after: int
) -> None:
    """Its generation is aborted within a second, streamed or not, and no node is blamed."""
    async with fake_llamacpp(fate="silent", cut_after=after) as engine:
        if not after:
            engine.first_token = asyncio.Event()
        await register(store, "a", engine.url)
        async with running_gateway(redis_url) as gateway:
            await gateway.ready()
            async with _leaving(gateway, stream=stream):
                await until(_is(lambda: engine.live == 1), 5)
                await asyncio.sleep(0.2)
            await _forgotten(gateway, store, engine)
            assert engine.aborted == 1
        kinds = [fields["kind"] for _, fields in await store.redis.xrange("unbroken:events")]
        assert events.Kind.UPSTREAM_BROKEN not in kinds


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
async def test_a_client_that_leaves_while_the_next_node_begins(redis_url: str, store: Store, *, stream: bool) -> None:
    """Failed over, not yet a token from there: that attempt is aborted as well."""
    async with fake_llamacpp(fate="reset", cut_after=5) as one, fake_llamacpp(first_token=asyncio.Event()) as two:
        await register(store, "a", one.url)
        await register(store, "b", two.url, score=1_000.0)
        async with running_gateway(redis_url, request={"resume_patience_ms": 20}) as gateway:
            await gateway.ready()
            async with _leaving(gateway, stream=stream):
                await until(_is(lambda: two.live == 1), 5)
            await _forgotten(gateway, store, one, two)
            assert two.aborted == 1


async def test_a_client_that_leaves_while_its_next_node_is_chosen(redis_url: str, store: Store) -> None:
    """Paused between two nodes: nothing is ever started on the second."""
    async with fake_llamacpp(fate="reset", cut_after=5) as one, fake_llamacpp() as two:
        await register(store, "a", one.url)
        await register(store, "b", two.url, score=1_000.0)
        async with running_gateway(redis_url, request={"resume_patience_ms": 1_500}) as gateway:
            await gateway.ready()
            async with _leaving(gateway, stream=True):
                await until(_is(lambda: one.orders and not one.live), 5)
            await asyncio.sleep(2.0)  # longer than the patience: had it been kept, the peer would have got it
            assert two.orders == []
            await _forgotten(gateway, store, one, two)


def _is(judge: Any) -> Any:
    async def ask() -> bool:
        return bool(judge())

    return ask
