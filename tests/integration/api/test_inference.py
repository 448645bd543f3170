"""The OpenAI surface on a real engine: answers, refusals, pings, a client that leaves."""

import asyncio
import io
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest

from engines.llamacpp import LlamaCpp, open_session
from recovery import journal
from recovery.auth import digest
from recovery.store import Store, node_key
from tests.rigs.engine import RunningEngine
from tests.rigs.gateway import MODEL, register, running_gateway, until
from tests.rigs.streams import Collected, collect_openai, collect_raw

_FOX: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "Tell me a story about a fox."}]}


async def test_streamed_and_whole_answers_are_equal(redis_url: str, store: Store, steady: RunningEngine) -> None:
    """Same text, usage and ids, through the real openai client."""
    # Given
    await register(store, "a", steady.url)
    async with running_gateway(redis_url) as gateway, gateway.openai() as client:
        await gateway.ready()
        # When
        streamed = await collect_openai(client, **_FOX, max_tokens=24)
        whole = await client.chat.completions.create(temperature=0, max_tokens=24, **_FOX)
        # Then
        assert whole.choices[0].message.content == streamed.text
        assert whole.choices[0].finish_reason == "length"
        assert (streamed.roles, streamed.finishes, len(streamed.answer_ids)) == (1, ["length"], 1)
        assert len(streamed.ids) == 24
        [usage] = streamed.usages
        assert (usage["prompt_tokens"], usage["completion_tokens"]) == (whole.usage.prompt_tokens, 24)
        models = [model.id async for model in client.models.list()]
        assert models == [MODEL]


async def test_a_completion_takes_text_or_token_ids(redis_url: str, store: Store, steady: RunningEngine) -> None:
    """Both name the same prompt, so both get the same answer."""
    await register(store, "a", steady.url)
    async with open_session() as session:
        ids = await LlamaCpp(steady.url, session).tokenize("The fox and the", 5.0)
    async with running_gateway(redis_url) as gateway, gateway.openai() as client:
        await gateway.ready()
        by_text = await client.completions.create(model=MODEL, prompt="The fox and the", max_tokens=8, temperature=0)
        by_ids = await collect_openai(client, model=MODEL, prompt=ids, max_tokens=8)
        assert by_text.choices[0].text == by_ids.text
        assert by_text.usage is not None
        assert by_text.usage.prompt_tokens == len(ids)


async def test_bad_requests_get_clear_answers(redis_url: str, store: Store, steady: RunningEngine) -> None:
    """Status, code and field of each refusal, in OpenAI's shape."""
    await register(store, "a", steady.url)
    long = {**_FOX, "messages": [{"role": "user", "content": "fox " * 1_200}]}
    cases: list[tuple[bytes, int, str, str | None]] = [
        (b"{not json", 400, "invalid_json", None),
        (orjson.dumps({**_FOX, "model": "gpt-9"}), 404, "model_not_found", "model"),
        (orjson.dumps({**_FOX, "max_tokens": 0}), 400, "invalid_value", "max_tokens"),
        (orjson.dumps({**_FOX, "n": 2}), 400, "not_supported", "n"),
        (orjson.dumps(long), 400, "context_length_exceeded", "messages"),
        (orjson.dumps({**long, "stream": True}), 400, "context_length_exceeded", "messages"),
        (b" " * (8 * 1024 * 1024 + 1), 413, "body_too_large", None),
    ]
    async with running_gateway(redis_url) as gateway:
        await gateway.ready()
        for body, status, code, param in cases:
            async with gateway.session.post(f"{gateway.url}/v1/chat/completions", data=io.BytesIO(body)) as answer:
                error = (await answer.json())["error"]
                assert (answer.status, error["code"], error["param"]) == (status, code, param)
                if code == "context_length_exceeded":
                    assert "1024" in error["message"]
                    assert "12" in error["message"]
        refused = orjson.dumps({**_FOX, "min_tokens": 5, "stream": True})
        async with gateway.session.post(f"{gateway.url}/v1/chat/completions", data=refused) as answer:
            assert answer.status == 400
            assert "min_tokens" in (await answer.json())["error"]["message"]
        async with gateway.session.get(f"{gateway.url}/v1/chat/completions") as answer:
            assert answer.status == 405


async def test_keys_and_scopes_are_checked(redis_url: str, tmp_path: Path) -> None:
    """No key 401, wrong key 401, a key without the scope 403, on both kinds of routes."""
    keys = tmp_path / "keys.json"
    keys.write_bytes(
        orjson.dumps([
            {"name": "app", "sha256": digest("app-key"), "scopes": ["inference"]},
            {"name": "ops", "sha256": digest("ops-key"), "scopes": ["operator"]},
        ])
    )  # fmt: skip
    async with running_gateway(redis_url, auth={"keys_file": keys}) as gateway:

        async def status(path: str, key: str | None) -> tuple[int, str]:
            headers = {} if key is None else {"Authorization": f"Bearer {key}"}
            async with gateway.session.get(gateway.url + path, headers=headers) as answer:
                return answer.status, answer.content_type

        for key, models, nodes in ((None, 401, 401), ("x", 401, 401), ("app-key", 200, 403), ("ops-key", 403, 200)):
            assert (await status("/v1/models", key))[0] == models
            got, kind = await status("/v1/nodes", key)
            assert got == nodes
            assert kind == ("application/json" if got == 200 else "application/problem+json")
        assert (await status("/healthz", None))[0] == 200


@pytest.mark.parametrize("style", ["comment", "comment-blank"])
async def test_pings_cover_the_wait_for_a_first_token(
    redis_url: str, store: Store, steady: RunningEngine, style: str
) -> None:
    """Headers within a second and pings while the engine says nothing; the real openai client skips them."""
    # Given
    await register(store, "a", steady.url)
    request = {"ping_interval_s": 0.2, "ping_style": style}
    async with running_gateway(redis_url, request=request) as gateway, gateway.openai() as client:
        await gateway.ready()
        calm = await collect_openai(client, **_FOX, max_tokens=12)
        # When
        steady.stop()
        try:
            raw = asyncio.create_task(collect_raw(gateway.session, gateway.url, {**_FOX, "max_tokens": 12}))
            sdk = asyncio.create_task(collect_openai(client, **_FOX, max_tokens=12))
            await asyncio.sleep(1.6)  # the silence itself is what is tested
        finally:
            steady.cont()
        got, through_sdk = await raw, await sdk
        # Then
        assert got.started_after < 1.5
        assert got.comments.count("ping") >= 2
        assert (b": ping\n\n" in got.raw) == (style == "comment-blank")
        assert (got.text, got.done, got.error) == (calm.text, 1, "")
        assert (through_sdk.text, through_sdk.error) == (calm.text, "")
        assert got.headers["content-type"].startswith("text/event-stream")
        assert got.headers["x-accel-buffering"] == "no"
        assert got.headers["unbroken-resume"] == "exact"
        assert got.headers["unbroken-request-id"]


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_frees_the_engine(
    redis_url: str, store: Store, steady: RunningEngine, stream: bool
) -> None:
    """Its generation is aborted within a second or two and its journal entry goes."""
    await register(store, "a", steady.url)
    async with running_gateway(redis_url) as gateway, open_session() as engine_session:
        await gateway.ready()
        engine = LlamaCpp(steady.url, engine_session)

        async def running() -> bool:
            return (await engine.progress(5.0)).running == 1

        async def idle() -> bool:
            left = await store.redis.keys("unbroken:{request:*")
            here = await store.redis.smembers(node_key("a", "requests"))
            return (await engine.progress(5.0)).running == 0 and not left and not here

        async with aiohttp.ClientSession() as leaving:
            body = {**_FOX, "max_tokens": 900, "temperature": 0, "stream": stream}
            asking = asyncio.create_task(leaving.post(f"{gateway.url}/v1/chat/completions", json=body))
            await until(running, 5)
            assert await store.redis.smembers(node_key("a", "requests"))
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
        await until(idle, 3)
        assert await gateway.metric("unbroken_requests_running") == 0


async def test_the_journal_holds_the_request_while_it_runs(redis_url: str, store: Store, steady: RunningEngine) -> None:
    """Workers can plan with it: prompt, node, epoch and a watermark that follows the client."""
    epoch = await register(store, "a", steady.url)
    seen: list[journal.Entry] = []

    async def watch(_collected: Collected) -> None:
        entries = await journal.entries_on(store, "a", epoch)
        seen.extend(entries[:1])

    async with running_gateway(redis_url) as gateway:
        await gateway.ready()
        got = await collect_raw(gateway.session, gateway.url, {**_FOX, "max_tokens": 60}, watch)
    assert len(got.ids) == 60
    marks = [entry.delivered for entry in seen]
    assert marks == sorted(marks)
    assert 16 <= marks[-1] <= 60
    assert got.headers["unbroken-node"] == "a"
    assert {entry.model for entry in seen} == {MODEL}
