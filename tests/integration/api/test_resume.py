"""Engines that die or freeze under streams: the answers must come out as if nothing had happened."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from recovery import events, journal
from recovery.journal import Assignment
from recovery.store import Store, node_key
from tests.rigs.engine import RunningEngine, running_engine
from tests.rigs.gateway import MODEL, RunningGateway, register, running_gateway, until
from tests.rigs.streams import Collected, collect_openai, collect_raw
from tests.rigs.valkey import Valkey

_QUESTIONS = ("Tell me a story about a fox.", "Write about the sea.", "Explain why the sky is blue.")


def _ask(question: str = _QUESTIONS[0], **fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": question}], "max_tokens": 60, **fields}


@dataclass(frozen=True, slots=True)
class _Stack:
    gateway: RunningGateway
    store: Store
    a: RunningEngine
    b: RunningEngine
    epochs: dict[str, int]


_FAR = 1_000.0
"""A score so bad that new requests go to the other node."""


@contextlib.asynccontextmanager
async def _stack(redis_url: str, tmp_path: Path, **sections: Any) -> AsyncIterator[_Stack]:
    store = Store(redis_url)
    try:
        async with running_engine(tmp_path) as a, running_engine(tmp_path) as b:
            epochs = {"a": await register(store, "a", a.url), "b": await register(store, "b", b.url, score=_FAR)}
            async with running_gateway(redis_url, **{"routing": {"policy": "fastest"}, **sections}) as gateway:
                await gateway.ready()
                yield _Stack(gateway, store, a, b, epochs)
    finally:
        await store.aclose()


@pytest.fixture
async def stack(redis_url: str, tmp_path: Path) -> AsyncGenerator[_Stack]:
    """A gateway before two engines; new requests go to node a."""
    async with _stack(redis_url, tmp_path) as stack:
        yield stack


def _once(collected_ids: int, act: Any) -> Any:
    """Return a watcher that acts once, when a stream has that many ids."""
    done: list[bool] = []

    def watch(collected: Collected) -> Any:
        if len(collected.ids) >= collected_ids and not done:
            done.append(True)
            return act()
        return None

    return watch


def _assert_same(got: Collected, calm: Collected) -> None:
    assert (got.text, got.ids, got.error) == (calm.text, calm.ids, "")
    assert (got.roles, got.finishes, len(got.answer_ids)) == (1, calm.finishes, 1)
    assert [usage["completion_tokens"] for usage in got.usages] == [u["completion_tokens"] for u in calm.usages]
    assert [usage["prompt_tokens"] for usage in got.usages] == [u["prompt_tokens"] for u in calm.usages]


async def test_three_streams_survive_the_engine_s_death(stack: _Stack) -> None:
    """SIGKILL in mid-stream: all go on at the peer, token for token (requirements C1, E1)."""
    # Given
    usage = {"stream_options": {"include_usage": True}}
    async with stack.gateway.openai() as client:
        calm = [await collect_openai(client, **_ask(question)) for question in _QUESTIONS]
    # When
    kill = _once(15, stack.a.kill9)
    got = await asyncio.gather(*[
        collect_raw(stack.gateway.session, stack.gateway.url, {**_ask(question), **usage}, kill)
        for question in _QUESTIONS
    ])  # fmt: skip
    # Then
    for stream, undisturbed in zip(got, calm, strict=True):
        _assert_same(stream, undisturbed)
        assert stream.done == 1
        assert stream.comments[0] == "ping"
        resumed = [comment for comment in stream.comments if comment.startswith("resumed node=b class=exact at=")]
        assert len(resumed) == 1
        assert " reused=" in resumed[0]
    told = await stack.store.redis.xrange("unbroken:events")
    broken = [fields for _id, fields in told if fields["kind"] == events.Kind.UPSTREAM_BROKEN]
    assert {(fields["node"], fields["epoch"]) for fields in broken} == {("a", "1")}

    async def forgotten() -> bool:
        return not await stack.store.redis.keys("unbroken:{request:*")

    await until(forgotten, 3)


async def test_a_death_before_the_first_token_is_not_noticed(stack: _Stack) -> None:
    """The openai client gets its whole answer, only later."""
    async with stack.gateway.openai() as client:
        calm = await collect_openai(client, **_ask(max_tokens=16))
        stack.a.stop()
        asking = asyncio.create_task(collect_openai(client, **_ask(max_tokens=16)))

        async def arrived() -> bool:
            return await stack.gateway.metric("unbroken_requests_running") == 1

        await until(arrived, 5)
        stack.a.kill9()
        _assert_same(await asking, calm)


async def test_a_whole_answer_survives_too(stack: _Stack) -> None:
    """Non-streaming calls run through the same machinery."""
    async with stack.gateway.openai() as client:
        calm = await client.chat.completions.create(temperature=0, **_ask())
        asking = asyncio.create_task(client.chat.completions.create(temperature=0, **_ask()))

        async def begun() -> bool:
            requests = await journal.entries_on(stack.store, "a", stack.epochs["a"])
            return any(entry.delivered >= 16 for entry in requests)

        await until(begun, 10)
        stack.a.kill9()
        got = await asking
        assert got.choices[0].message.content == calm.choices[0].message.content
        assert got.usage == calm.usage


async def test_a_seeded_sampled_answer_is_replayed_exactly(stack: _Stack) -> None:
    """Not greedy, but seeded: re-run from its prompt, verified, and none of it shown twice."""
    ask = _ask(temperature=0.9, seed=11)
    calm = await collect_raw(stack.gateway.session, stack.gateway.url, ask)
    got = await collect_raw(stack.gateway.session, stack.gateway.url, ask, _once(15, stack.a.kill9))
    assert (got.text, got.ids, got.finishes, got.error) == (calm.text, calm.ids, calm.finishes, "")
    assert got.headers["unbroken-resume"] == "replayed"
    assert any("class=replayed" in comment for comment in got.comments)


async def test_a_frozen_engine_is_left_on_the_verdict(stack: _Stack) -> None:
    """SIGSTOP: the sockets stay open and silent, the event alone moves the stream."""
    async with stack.gateway.openai() as client:
        calm = await collect_openai(client, **_ask())

        async def freeze() -> None:
            stack.a.stop()
            fields: dict[str, str | int | float] = {
                "node": "a",
                "epoch": stack.epochs["a"],
                "cause": "hang",
                "evidence": "test",
            }
            await events.publish(stack.store, events.Kind.NODE_DEAD, fields)

        _assert_same(await collect_openai(client, _once(15, freeze), **_ask()), calm)


async def test_an_assignment_from_the_inbox_is_obeyed(redis_url: str, tmp_path: Path) -> None:
    """A worker's choice wins over the gateway's patience, however long that is."""
    async with _stack(redis_url, tmp_path, request={"resume_patience_ms": 30_000}) as stack:
        calm = await collect_raw(stack.gateway.session, stack.gateway.url, _ask())

        async def assign() -> None:
            stack.a.kill9()
            [request] = await stack.store.redis.smembers(node_key("a", "requests"))
            verdict, standing = await journal.assign(stack.store, request, 0, "b", stack.epochs["b"], "job:a.1")
            assert verdict == "assigned"
            assert standing is not None
            await journal.push(stack.store, stack.gateway.id, Assignment("nobody", 1, "peer", "b", 1))
            await journal.push(stack.store, stack.gateway.id, standing)

        got = await collect_raw(stack.gateway.session, stack.gateway.url, _ask(), _once(15, assign))
        assert (got.text, got.error) == (calm.text, "")
        assert any("resumed node=b" in comment for comment in got.comments)


async def test_an_assignment_nobody_delivered_is_found(stack: _Stack) -> None:
    """A worker that died between the journal and the inbox has decided all the same: one attempt, one winner."""
    epoch = await register(stack.store, "c", stack.b.url)
    calm = await collect_raw(stack.gateway.session, stack.gateway.url, _ask())

    async def assign() -> None:
        stack.a.kill9()
        [request] = await stack.store.redis.smembers(node_key("a", "requests"))
        verdict, _ = await journal.assign(stack.store, request, 0, "c", epoch, "job:a.1")
        assert verdict == "assigned"

    got = await collect_raw(stack.gateway.session, stack.gateway.url, _ask(), _once(15, assign))
    assert (got.text, got.error) == (calm.text, "")
    assert any("resumed node=c" in comment for comment in got.comments)


async def test_streams_wait_on_pings_until_a_node_is_back(redis_url: str, tmp_path: Path) -> None:
    """Both engines die; the client gets pings, and its answer's rest once one is registered again."""
    async with _stack(redis_url, tmp_path, request={"ping_interval_paused_s": 0.2}) as stack:
        calm = await collect_raw(stack.gateway.session, stack.gateway.url, _ask())
        paused = asyncio.Event()

        def watch(collected: Collected) -> None:
            if len(collected.ids) >= 15 and not collected.comments:
                stack.a.kill9()
                stack.b.kill9()
            if collected.comments.count("ping") >= 4:
                paused.set()

        asking = asyncio.create_task(collect_raw(stack.gateway.session, stack.gateway.url, _ask(), watch))
        await asyncio.wait_for(paused.wait(), 20)
        # Another client comes meanwhile: it waits as well instead of being refused.
        second = asyncio.create_task(collect_raw(stack.gateway.session, stack.gateway.url, _ask(max_tokens=4)))
        async with running_engine(tmp_path) as again:
            await register(stack.store, "a", again.url)
            got, other = await asking, await second
        assert (got.text, got.ids, got.done, got.error) == (calm.text, calm.ids, 1, "")
        assert (other.ids, other.error) == (calm.ids[:4], "")


async def test_no_redis_hurts_no_stream(own_valkey: Valkey, tmp_path: Path) -> None:
    """Redis dies under a stream, then the engine: the gateway assigns by itself (requirements D12)."""
    async with _stack(own_valkey.url, tmp_path) as stack:
        calm = await collect_raw(stack.gateway.session, stack.gateway.url, _ask())
        own_valkey.stop()
        fresh = await collect_raw(stack.gateway.session, stack.gateway.url, _ask(), _once(15, stack.a.kill9))
        assert (fresh.text, fresh.ids, fresh.error) == (calm.text, calm.ids, "")
        assert await stack.gateway.metric("unbroken_journal_failures_total") > 0
        own_valkey.start()


async def test_spent_retries_end_in_one_error(redis_url: str, tmp_path: Path) -> None:
    """The openai client raises; no [DONE], no invented finish (requirements C3)."""
    async with _stack(redis_url, tmp_path, request={"max_retries": 0}) as stack, stack.gateway.openai() as client:
        raw = asyncio.create_task(collect_raw(stack.gateway.session, stack.gateway.url, _ask()))
        sdk = await collect_openai(client, _once(15, stack.a.kill9), **_ask())
        got = await raw
        for stream in (sdk, got):
            assert (stream.error, stream.finishes) == ("retries_exhausted", [])
            assert len(stream.ids) >= 1
        assert got.done == 0
        assert got.raw.count(b'"error"') == 1
        assert got.raw.endswith(b"\n\n")


async def test_a_client_that_leaves_a_paused_stream_is_forgotten(redis_url: str, tmp_path: Path) -> None:
    """Nothing is recovered for nobody."""
    async with _stack(redis_url, tmp_path) as stack:

        def kill_both() -> None:
            stack.a.kill9()
            stack.b.kill9()

        asking = asyncio.create_task(
            collect_raw(stack.gateway.session, stack.gateway.url, _ask(), _once(10, kill_both))
        )

        async def paused() -> bool:
            return await stack.gateway.metric("unbroken_requests_running") == 1 and stack.a.process.poll() is not None

        await until(paused, 10)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)

        async def forgotten() -> bool:
            left = await stack.store.redis.keys("unbroken:{request:*")
            return not left and await stack.gateway.metric("unbroken_requests_running") == 0

        await until(forgotten, 3)
