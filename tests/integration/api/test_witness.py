"""What a gateway tells the sentinels of the engines under its streams, on a real Redis."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any

from api.pulses import Pulses
from api.tether import Tether
from api.witness import TOKENS_S, Witness
from recovery import events
from recovery.events import Event
from recovery.registry import Node
from recovery.stopping import stop_tasks
from recovery.store import EVENTS, TOKENS, Store
from tests.rigs.fake_llamacpp import fake_llamacpp, text
from tests.rigs.gateway import MODEL, register, running_gateway, until
from tests.rigs.streams import collect_raw
from tests.rigs.valkey import Valkey

_PROMPT = [1, 2, 3]


def _ask(tokens: int) -> dict[str, Any]:
    return {"model": MODEL, "prompt": _PROMPT, "max_tokens": tokens}


async def _told(store: Store, stream: str, kind: str = "") -> list[Event]:
    told = events.parse(await store.redis.xrange(stream))
    return [event for event in told if not kind or event.kind == kind]


async def test_tokens_are_told_while_they_come_and_not_when_idle(redis_url: str, store: Store) -> None:
    """A few messages a second about all engines together, each with the age of the last token."""
    async with fake_llamacpp(token_s=0.02) as engine:
        epoch = await register(store, "a", engine.url)
        async with running_gateway(redis_url) as gateway:
            await gateway.ready()
            began = time.monotonic()
            got = await collect_raw(gateway.session, gateway.url, _ask(50), path="completions")
            took = time.monotonic() - began
            assert got.text == text(0, 50)

            async def all_told() -> bool:
                return len(await _told(store, TOKENS)) >= 2

            await until(all_told, 5)
            await asyncio.sleep(2 * TOKENS_S)
            told = await _told(store, TOKENS)
            assert {frozenset(event.fields) for event in told} == {frozenset({"gateway", f"a@{epoch}"})}
            assert {event.fields["gateway"] for event in told} == {gateway.id}
            assert len(told) <= took / TOKENS_S + 2
            assert all(0 <= int(event.fields[f"a@{epoch}"]) < 5_000 for event in told)
            # When nobody asks for anything any more
            await asyncio.sleep(3 * TOKENS_S)
            assert len(await _told(store, TOKENS)) == len(told)
    assert await _told(store, EVENTS, events.Kind.UPSTREAM_STALLED) == []


async def test_a_prompt_being_computed_counts_as_a_sign_of_work(redis_url: str, store: Store) -> None:
    """The engine's first frame comes long before its first token."""
    async with fake_llamacpp(first_token=asyncio.Event()) as engine:
        epoch = await register(store, "a", engine.url)
        async with running_gateway(redis_url) as gateway:
            await gateway.ready()
            asking = asyncio.create_task(collect_raw(gateway.session, gateway.url, _ask(5), path="completions"))

            async def told() -> bool:
                return any(f"a@{epoch}" in event.fields for event in await _told(store, TOKENS))

            await until(told, 5)
            assert engine.first_token is not None
            engine.first_token.set()
            assert (await asking).text == text(0, 5)


async def test_a_silence_under_streams_is_reported_once_and_ends_no_attempt(redis_url: str, store: Store) -> None:
    """Evidence for the sentinel within half a second or so; the stream itself waits on for the verdict."""
    async with fake_llamacpp(fate="silent", cut_after=20, token_s=0.01) as silent:
        epoch = await register(store, "a", silent.url)
        async with running_gateway(redis_url) as gateway:
            await gateway.ready()
            asking = [
                asyncio.create_task(collect_raw(gateway.session, gateway.url, _ask(50), path="completions"))
                for _ in range(3)
            ]

            async def reported() -> bool:
                return bool(await _told(store, EVENTS, events.Kind.UPSTREAM_STALLED))

            await until(reported, 10)
            await asyncio.sleep(1.0)  # a second report would come now
            [stall] = await _told(store, EVENTS, events.Kind.UPSTREAM_STALLED)
            assert (stall.node, stall.epoch, stall.fields["gateway"]) == ("a", epoch, gateway.id)
            assert stall.fields["evidence"].startswith("3 streams got nothing for ")
            assert (silent.live, len(silent.orders)) == (3, 3)
            assert await _told(store, EVENTS, events.Kind.UPSTREAM_BROKEN) == []
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)


@contextlib.asynccontextmanager
async def _witness(store: Store, pulses: Pulses) -> AsyncIterator[None]:
    task = asyncio.create_task(Witness(store, "g", pulses).run())
    try:
        yield
        assert not task.done()
    finally:
        await stop_tasks(task)


async def _for_ever() -> None:
    await asyncio.sleep(3_600)


async def test_a_blocked_gateway_accuses_nobody(redis_url: str, store: Store) -> None:
    """Its loop stands for longer than the limit: it has heard nothing because it did not listen."""
    pulses = Pulses(0.4, 8.0)
    tether = Tether(Node("a", 1))
    async with _witness(store, pulses):
        with pulses.felt(tether):
            tether.took()
            tether.speaks = True
            reading = asyncio.create_task(tether.hold(_for_ever, 60))
            await asyncio.sleep(0.1)
            for _ in range(3):
                time.sleep(0.45)  # noqa: ASYNC251 - the fault
                await asyncio.sleep(0.06)
            assert await _told(store, EVENTS) == []

            async def reported() -> bool:
                return len(await _told(store, EVENTS)) == 1

            await until(reported, 10)  # awake, it does
            await stop_tasks(reading)


async def test_no_redis_costs_only_the_message(own_valkey: Valkey) -> None:
    """The witness goes on, and tells again when Redis is back."""
    store = Store(own_valkey.url, 300)
    pulses = Pulses(0.4, 8.0)
    tether = Tether(Node("a", 1))
    own_valkey.stop()
    try:
        async with _witness(store, pulses):
            with pulses.felt(tether):
                for _ in range(10):
                    tether.took()
                    await asyncio.sleep(0.05)
                own_valkey.start()

                async def told() -> bool:
                    tether.took()
                    return bool(await _told(store, TOKENS))

                await until(told, 10)
    finally:
        await store.aclose()
