"""Engines that misbehave on the wire while they say they are healthy: no client may notice (reported failures)."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest

from recovery import events
from recovery.store import Store
from tests.rigs.fake_llamacpp import FakeLlamaCpp, Fate, fake_llamacpp, text, token
from tests.rigs.gateway import MODEL, RunningGateway, register, running_gateway, until
from tests.rigs.streams import collect_openai, collect_raw

_PROMPT = list(range(10, 110))
_QUICK = {"silence_timeout_s": 0.6, "resume_patience_ms": 50, "ping_interval_s": 0.2, "ping_interval_paused_s": 0.2}
_FAR = 1_000.0
"""A score so bad that new requests go to the other node."""


def _ask(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "prompt": _PROMPT, "max_tokens": 50, **fields}


@dataclass(frozen=True, slots=True)
class _Pair:
    gateway: RunningGateway
    store: Store
    a: FakeLlamaCpp
    b: FakeLlamaCpp

    async def broken(self) -> set[str]:
        """Return the nodes this gateway has reported."""
        told = await self.store.redis.xrange("unbroken:events")
        return {fields["node"] for _, fields in told if fields["kind"] == events.Kind.UPSTREAM_BROKEN}


@contextlib.asynccontextmanager
async def _pair(redis_url: str, store: Store, a: dict[str, Any], **request: Any) -> AsyncIterator[_Pair]:
    """A gateway before two fakes; new requests go to the first."""
    async with fake_llamacpp(prompt=len(_PROMPT), **a) as one, fake_llamacpp(prompt=len(_PROMPT)) as two:
        await register(store, "a", one.url)
        await register(store, "b", two.url, score=_FAR)
        async with running_gateway(redis_url, request={**_QUICK, **request}) as gateway:
            await gateway.ready()
            yield _Pair(gateway, store, one, two)


@pytest.mark.parametrize("fate", ["fin", "silent", "reset"])
@pytest.mark.parametrize("after", [0, 1, 20, 49, 50])
async def test_an_engine_that_stops_short_is_gone_on_from_exactly(
    redis_url: str, store: Store, fate: Fate, after: int
) -> None:
    """A polite end of body without a terminal frame is as bad as a reset (cases G3-02, G3-03, G3-05, G3-07).

    The peer is asked for the rest by the exact ids; the client sees 50 tokens, one finish and the usage of one answer.
    """
    async with _pair(redis_url, store, {"fate": fate, "cut_after": after}, first_token_timeout_s=0.8) as pair:
        # When
        ask = _ask(stream_options={"include_usage": True})
        got = await collect_raw(pair.gateway.session, pair.gateway.url, ask, path="completions")
        # Then
        assert got.text == text(0, 50)
        assert got.ids == [token(position) for position in range(50)]
        assert (got.finishes, got.done, got.error) == (["length"], 1, "")
        assert got.usages == [{"prompt_tokens": 100, "completion_tokens": 50, "total_tokens": 150}]
        assert got.raw.index(b'"total_tokens"') > got.raw.index(b'"finish_reason":"length"')
        if after == 50:
            # Nothing is left to generate: only the end was missing.
            assert pair.b.orders == []
        else:
            [order] = pair.b.orders
            assert order["prompt"] == [*_PROMPT, *(token(position) for position in range(after))]
            assert order["n_predict"] == 50 - after
        assert await pair.broken() == {"a"}


async def test_usage_is_not_sent_to_a_client_that_did_not_ask(redis_url: str, store: Store) -> None:
    """Nor is it after a resume (case G3-05)."""
    async with _pair(redis_url, store, {"fate": "fin", "cut_after": 20}) as pair:
        got = await collect_raw(pair.gateway.session, pair.gateway.url, _ask(), path="completions")
        assert got.text == text(0, 50)
        assert b"usage" not in got.raw


async def test_an_end_of_body_that_cannot_be_mended_is_an_error(redis_url: str, store: Store) -> None:
    """One error event, no [DONE], no invented finish; the real openai client raises (case G3-03)."""
    async with (
        _pair(redis_url, store, {"fate": "fin", "cut_after": 20}, max_retries=0) as pair,
        pair.gateway.openai() as client,
    ):
        raw = await collect_raw(pair.gateway.session, pair.gateway.url, _ask(), path="completions")
        await until(_trusted(pair), 5)
        sdk = await collect_openai(client, **_ask())
        for got in (raw, sdk):
            assert (got.text, got.finishes, got.error) == (text(0, 20), [], "retries_exhausted")
        assert raw.done == 0
        assert raw.raw.count(b'"error"') == 1


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n"], ids=["lf", "crlf"])
async def test_an_engine_s_own_comments_never_reach_a_client(redis_url: str, store: Store, line_end: bytes) -> None:
    """Bare colons and comments, before and between tokens, with both kinds of line ends (case G6-02)."""
    noise = b":" + line_end + b": PROCESSING" + line_end + line_end
    async with (
        _pair(redis_url, store, {"noise": noise, "line_end": line_end, "fate": "fin", "cut_after": 20}) as pair,
        pair.gateway.openai() as client,
    ):
        pair.b.noise, pair.b.line_end = noise, line_end
        raw = await collect_raw(pair.gateway.session, pair.gateway.url, _ask(), path="completions")
        await until(_trusted(pair), 5)
        sdk = await collect_openai(client, **_ask())
        assert raw.text == sdk.text == text(0, 50)
        assert (raw.error, sdk.error) == ("", "")
        assert b"PROCESSING" not in raw.raw
        assert {comment.split()[0] for comment in raw.comments} <= {"ping", "resumed"}
        lines = raw.raw.split(b"\n")
        assert not [line for line in lines if line.startswith(b"data: :") or line == b":"]


async def test_headers_and_pings_come_through_a_wait_that_goes_on_at_the_peer(redis_url: str, store: Store) -> None:
    """No first token from the first node, which then dies, nor from the second for a while (case G6-04).

    Nor is that time limited by the patience with silence between tokens, though the engine says it computes.
    """
    gate = asyncio.Event()
    async with _pair(redis_url, store, {"first_token": asyncio.Event(), "fate": "reset"}) as pair:
        pair.b.first_token = gate
        got = asyncio.create_task(collect_raw(pair.gateway.session, pair.gateway.url, _ask(), path="completions"))
        await until(_is(lambda: pair.a.live == 1), 5)
        await asyncio.sleep(1.2)  # past the second within which headers are promised
        assert pair.a.first_token is not None
        pair.a.first_token.set()
        await until(_is(lambda: pair.b.live == 1), 5)
        await asyncio.sleep(1.0)  # five pings' time
        gate.set()
        stream = await got
    assert (stream.text, stream.error) == (text(0, 50), "")
    assert stream.started_after < 1.1
    assert stream.comments.count("ping") >= 6


async def test_pings_to_the_client_do_not_reset_the_stall_timer(redis_url: str, store: Store) -> None:
    """Five tokens, then silence: the client is pinged meanwhile, the engine is left all the same (case G6-04)."""
    quick = {"ping_interval_s": 0.1, "silence_timeout_s": 1.5}
    async with _pair(redis_url, store, {"fate": "silent", "cut_after": 5}, **quick) as pair:
        got = await collect_raw(pair.gateway.session, pair.gateway.url, _ask(), path="completions")
        assert got.text == text(0, 50)
        assert got.comments.count("ping") >= 3
        assert got.gap >= 1.0
        await until(_is(lambda: pair.a.live == 0), 2)


async def test_a_hundred_streams_on_a_node_gone_silent_are_resumed_and_leave_nothing_behind(
    redis_url: str, store: Store
) -> None:
    """Five tokens each, then silence with every socket open (case G1-07)."""
    async with fake_llamacpp(prompt=100, fate="silent", cut_after=5) as silent, fake_llamacpp(prompt=100) as peer:
        await register(store, "a", silent.url)
        async with running_gateway(redis_url, request=_QUICK) as gateway:
            await gateway.ready()
            before = len(asyncio.all_tasks())
            # When
            running = [
                asyncio.create_task(collect_raw(gateway.session, gateway.url, _ask(), path="completions"))
                for _ in range(100)
            ]
            await until(_is(lambda: silent.live == 100), 15)
            await register(store, "b", peer.url)
            streams = await asyncio.gather(*running)
            # Then
            assert {(stream.text, stream.error, stream.done) for stream in streams} == {(text(0, 50), "", 1)}
            assert len(peer.orders) == 100

            async def nothing_left() -> bool:
                gone = silent.live == peer.live == 0 and len(asyncio.all_tasks()) <= before
                return gone and await gateway.metric("unbroken_requests_running") == 0

            await until(nothing_left, 5)
            assert silent.aborted == 100
        told = await store.redis.xrange("unbroken:events")
        assert {fields["node"] for _, fields in told if fields["kind"] == events.Kind.UPSTREAM_BROKEN} == {"a"}
        # The sentinel had a hint before any stream lost its patience, and one only
        hints = [fields for _, fields in told if fields["kind"] == events.Kind.UPSTREAM_STALLED]
        assert [hint["node"] for hint in hints] == ["a"]


async def test_event_streams_are_neither_buffered_nor_compressed_nor_numbered(redis_url: str, store: Store) -> None:
    """Headers that proxies obey; no `id:`, `retry:` or `event:`, which clients stumble over (cases G6-01, G6-05)."""
    async with (
        _pair(redis_url, store, {"token_s": 0.02}, ping_interval_s=0.05) as pair,
        pair.gateway.session.post(
            f"{pair.gateway.url}/v1/completions",
            json={**_ask(), "stream": True},
            headers={"Accept-Encoding": "gzip, br, zstd, deflate"},
        ) as answer,
    ):
        raw = await answer.read()
        assert answer.headers["x-accel-buffering"] == "no"
        assert answer.headers["cache-control"] == "no-cache"
        assert "content-encoding" not in answer.headers
        assert {line.partition(b":")[0] for line in raw.split(b"\n") if line} <= {b"data", b""}


def _is(judge: Any) -> Any:
    async def ask() -> bool:
        return bool(judge())

    return ask


def _trusted(pair: _Pair) -> Any:
    """Return a condition: the gateway sends requests to node a again, after its own suspicion."""
    before = len(pair.a.orders)

    async def ask() -> bool:
        await collect_raw(pair.gateway.session, pair.gateway.url, _ask(max_tokens=1), path="completions")
        return len(pair.a.orders) > before

    return ask
