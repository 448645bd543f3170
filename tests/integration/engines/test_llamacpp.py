"""The llama.cpp adapter on a real engine."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from engines.base import (
    Chunk,
    Engine,
    EngineBroken,
    EngineRejected,
    EngineTimeout,
    EngineUnreachable,
    Generation,
)
from tests.rigs.engine import RunningEngine, running_engine

GREEDY = {"temperature": 0}


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[RunningEngine]:
    """Run one engine of four slots."""
    async with running_engine(tmp_path) as running:
        yield running


async def prompt_for(engine: Engine, question: str) -> list[int]:
    """Return the ids of a chat with one question."""
    return await engine.render({"messages": [{"role": "user", "content": question}]}, 5)


async def collect(engine: Engine, prompt: list[int], tokens: int, **sampling: Any) -> list[Chunk]:
    """Return all chunks of one answer, greedy unless told otherwise."""
    chunks: list[Chunk] = []
    async for read in engine.generate(Generation(prompt, tokens, sampling={**GREEDY, **sampling}), 5):
        chunks += read
    return chunks


def ids(chunks: list[Chunk]) -> list[int]:
    """Return the ids of ``chunks`` in order."""
    return [token for chunk in chunks for token in chunk.ids]


def text(chunks: list[Chunk]) -> str:
    """Return the text of ``chunks`` in order."""
    return "".join(chunk.text for chunk in chunks)


async def drain(answer: AsyncIterator[list[Chunk]]) -> None:
    """Read an answer that must not finish."""
    async for chunks in answer:
        assert all(chunk.finish is None for chunk in chunks)


async def until(seconds: float, holds: Callable[[], Awaitable[bool]]) -> None:
    """Wait until the awaitable ``holds()`` gives a true value."""
    end = time.monotonic() + seconds
    while not await holds():
        assert time.monotonic() < end, "it never came true"
        await asyncio.sleep(0.02)


@pytest.mark.parametrize("neighbours", [0, 3])
async def test_a_greedy_answer_resumed_by_ids_equals_the_undisturbed_one(
    running: RunningEngine, neighbours: int
) -> None:
    """At every kind of cut, alone or beside other streams (design, section 7)."""
    # Given an answer nobody disturbed
    engine = running.engine
    prompt = await prompt_for(engine, "What is photosynthesis?")
    whole = await collect(engine, prompt, 48)
    assert len(ids(whole)) == 48
    # And other slots at work
    others = [await prompt_for(engine, f"Tell me a story about the number {n}.") for n in range(neighbours)]
    busy = [asyncio.create_task(collect(engine, other, 800, ignore_eos=True)) for other in others]
    try:
        for cut in (0, 1, 23, 47):
            # When
            rest = await collect(engine, prompt + ids(whole)[:cut], 48 - cut)
            # Then
            assert ids(rest) == ids(whole)[cut:]
            assert rest[-1].finish == whole[-1].finish
        assert not any(task.done() for task in busy)
    finally:
        for task in busy:
            task.cancel()
        await asyncio.gather(*busy, return_exceptions=True)


@pytest.mark.parametrize(
    ("question", "sampling"),
    [
        ("Reply only with these emoji: 🎉🚀🐱", {}),
        ("Translate to Chinese: I love eating apples.", {"temperature": 1.2, "seed": 7}),
        ("List ten emoji with their names", {"temperature": 1.2, "seed": 7}),
        ('Write "naïve café résumé" three times', {}),
    ],
)
async def test_ids_and_text_agree_at_each_boundary_of_any_script(
    running: RunningEngine, question: str, sampling: dict[str, Any]
) -> None:
    """The ids of the sure chunks so far, detokenised, are the text so far."""
    engine = running.engine
    prompt = await prompt_for(engine, question)
    chunks = await collect(engine, prompt, 60, **sampling)
    so_far: list[int] = []
    for number, chunk in enumerate(chunks[:-1], 1):
        so_far += chunk.ids
        if chunk.sure:
            assert await text_of(running, so_far) == text(chunks[:number])
    assert sum(chunk.sure for chunk in chunks) > len(chunks) / 2
    assert chunks[-1].generated is not None
    assert len(ids(chunks)) <= chunks[-1].generated


async def test_ids_of_a_multi_id_character_are_all_recovered(running: RunningEngine) -> None:
    """llama.cpp sends the last id of an emoji only; a resume needs them all."""
    engine = running.engine
    prompt = await prompt_for(engine, "Reply only with these emoji: 🎉🚀🐱")
    # Given
    chunks = await collect(engine, prompt, 12)
    emoji = [chunk for chunk in chunks if len(chunk.ids) > 1]
    assert emoji
    # When the answer is resumed after the first of them
    cut = chunks.index(emoji[0]) + 1
    rest = await collect(engine, prompt + ids(chunks[:cut]), 12 - len(ids(chunks[:cut])))
    # Then
    assert text(rest) == text(chunks[cut:])


async def text_of(running: RunningEngine, tokens: list[int]) -> str:
    """Return the text of ``tokens`` as the engine itself writes it."""
    async with running.session.post(running.url + "/detokenize", json={"tokens": tokens}) as answer:
        return str((await answer.json())["content"])


@pytest.mark.parametrize("cut", [0, 2])
async def test_a_stop_string_ends_the_answer_and_no_id_reaches_past_the_text(running: RunningEngine, cut: int) -> None:
    """Whether it starts with a token or cuts one in two, sure ids end where the sure text ends."""
    # Given an answer, and a stop string that begins `cut` characters into one of its tokens
    engine = running.engine
    prompt = await prompt_for(engine, "What is photosynthesis?")
    plain = await collect(engine, prompt, 30)
    victim = next(n for n, chunk in enumerate(plain) if n > 3 and len(chunk.text) > 5)
    stop = plain[victim].text[cut:] + plain[victim + 1].text
    # When
    chunks = await collect(engine, prompt, 30, stop=[stop, "never"])
    # Then
    whole = text(plain)
    assert text(chunks) == whole[: whole.index(stop)]
    assert chunks[-1].finish == "stop"
    for number, chunk in enumerate(chunks, 1):
        if chunk.sure:
            assert await text_of(running, ids(chunks[:number])) == text(chunks[:number])


async def test_a_stop_string_inside_one_token_leaves_no_id_of_it(running: RunningEngine) -> None:
    """The token's first half is delivered without an id: `five` stopped at `ive`."""
    # Given
    engine = running.engine
    prompt = await prompt_for(engine, "What is photosynthesis?")
    plain = await collect(engine, prompt, 30)
    victim = next(n for n, chunk in enumerate(plain) if n > 3 and len(chunk.text) > 5)
    # When
    chunks = await collect(engine, prompt, 30, stop=plain[victim].text[2:])
    # Then
    assert text(chunks) == text(plain[:victim]) + plain[victim].text[:2]
    assert ids(chunks) == ids(plain[:victim])
    assert chunks[-1].finish == "stop"


async def test_text_withheld_for_a_stop_string_is_delivered_when_the_budget_ends(running: RunningEngine) -> None:
    """llama.cpp itself forgets it."""
    engine = running.engine
    prompt = await prompt_for(engine, "Count from one to five in words.")
    plain = await collect(engine, prompt, 3)
    held = plain[-2].text
    assert held
    chunks = await collect(engine, prompt, 3, stop=[held + " surely not"])
    assert text(chunks) == text(plain)
    assert ids(chunks) == ids(plain)


async def test_an_answer_that_ends_by_itself_says_stop(running: RunningEngine) -> None:
    """The end-of-text id comes with the finish, so it is never resumed from."""
    chunks = await collect(running.engine, await prompt_for(running.engine, "Say: five"), 200)
    assert chunks[-1].finish == "stop"
    assert chunks[-1].text == ""
    assert all(chunk.text for chunk in chunks[:-1] if chunk.cached is None)
    assert chunks[-1].generated == len(ids(chunks))


async def test_a_prompt_seen_before_is_taken_from_the_cache(running: RunningEngine) -> None:
    """The first chunk and the last say how much of it (requirements C5)."""
    prompt = await prompt_for(running.engine, "What is photosynthesis?")
    first = await collect(running.engine, prompt, 4)
    second = await collect(running.engine, prompt + ids(first), 4)
    assert first[0].cached == first[-1].cached
    assert second[0].cached == second[-1].cached
    assert second[-1].cached is not None
    assert second[-1].cached >= len(prompt)


async def test_one_chat_after_the_other_keeps_both_in_the_cache(running: RunningEngine) -> None:
    """What two chats have in common at their start must not make one take the other's slot over."""
    # Given two chats with the same template and instructions of their own
    chats = [
        await running.engine.render(
            {"messages": [{"role": "system", "content": system}, {"role": "user", "content": "Go on."}]}, 5.0
        )
        for system in ("First: you count planets, and name each.", "Second: you describe rivers at length.")
    ]
    # When both are computed, one after the other
    for chat in chats:
        await collect(running.engine, chat, 8)
    # Then both are there
    again = [await collect(running.engine, chat, 1) for chat in chats]
    assert [chunks[0].cached for chunks in again] == [len(chat) - 1 for chat in chats]


async def test_the_rendered_prompt_is_the_one_the_engine_itself_uses(running: RunningEngine) -> None:
    """Same prompt token count and same greedy answer as its own chat route (requirements C4)."""
    # Given
    chat = {
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Name a colour. <|im_end|> é 🎉"},
            {"role": "assistant", "content": "Blue."},
            {"role": "user", "content": "Another one."},
        ]
    }
    body = {**chat, "max_tokens": 20, "temperature": 0}
    async with running.session.post(running.url + "/v1/chat/completions", json=body) as response:
        own = await response.json()
    # When
    prompt = await running.engine.render(chat, 5)
    chunks = await collect(running.engine, prompt, 20)
    # Then
    assert len(prompt) == own["usage"]["prompt_tokens"]
    assert text(chunks) == own["choices"][0]["message"]["content"]


async def test_the_engine_describes_itself(running: RunningEngine, tmp_path: Path) -> None:
    """Two engines of the same settings agree; one with other threads is another, and not invariant."""
    here = await running.engine.capabilities(5)
    assert (here.kind, here.model, here.context, here.slots) == ("llamacpp", "smollm2", 1024, 4)
    assert here.invariant
    async with running_engine(tmp_path, slots=1, context=512) as twin:
        assert (await twin.engine.capabilities(5)).identity == here.identity
    async with running_engine(tmp_path, slots=1, threads=2) as other:
        there = await other.engine.capabilities(5)
        assert there.identity != here.identity
        assert not there.invariant


async def test_a_sigkill_in_mid_stream_breaks_the_answer(running: RunningEngine) -> None:
    """End of body without a final frame is a failure, whatever came before."""
    # Given
    order = Generation([1], 900, sampling={**GREEDY, "ignore_eos": True})
    async with aclosing(running.engine.generate(order, 5)) as answer:
        await anext(answer)
        # When
        running.kill9()
        # Then
        with pytest.raises(EngineBroken):
            await drain(answer)
    running.process.wait(10)
    with pytest.raises(EngineUnreachable):
        await anext(running.engine.generate(order, 5))
    assert not await running.engine.healthy(1)


async def test_a_stopped_engine_times_out_and_a_late_probe_is_aborted(running: RunningEngine) -> None:
    """SIGSTOP: connections still open, nothing answers; afterwards no probe is left behind."""
    engine = running.engine
    assert await engine.micro_inference(5) >= 0
    # When
    running.stop()
    # Then
    with pytest.raises(EngineTimeout):
        await engine.micro_inference(0.3)
    with pytest.raises(EngineTimeout):
        await engine.progress(0.3)
    assert not await engine.healthy(0.3)
    # And when it goes on, it serves as before
    running.cont()

    async def idle() -> bool:
        return (await engine.progress(5)).running == 0

    await until(10, idle)
    assert await engine.micro_inference(5) >= 0


async def test_a_client_that_leaves_aborts_its_generation(running: RunningEngine) -> None:
    """Closing the generator frees the slot within a second."""
    order = Generation([1], 900, sampling={**GREEDY, "ignore_eos": True})
    async with aclosing(running.engine.generate(order, 5)) as answer:
        await anext(answer)
        assert (await running.engine.progress(5)).running == 1

    async def idle() -> bool:
        return (await running.engine.progress(5)).running == 0

    await until(3, idle)


async def _first_text(answer: AsyncGenerator[list[Chunk], None]) -> None:
    """Read on until the prompt is done and the first text comes."""
    async for read in answer:
        if any(chunk.text for chunk in read):
            return


async def test_the_progress_counter_grows_in_prefill_and_in_decode(running: RunningEngine) -> None:
    """A long prompt is work, not a hang; an idle engine stands still."""
    engine = running.engine
    assert (await engine.progress(5)).counter == (await engine.progress(5)).counter
    answer = engine.generate(Generation([500] * 400, 50, sampling={**GREEDY, "ignore_eos": True}), 5)
    first = asyncio.ensure_future(_first_text(answer))
    try:
        # While the prompt is processed
        seen: set[int] = set()
        prefilling: set[int] = set()
        while not first.done():
            progress = await engine.progress(5)
            if not first.done():
                seen.add(progress.counter)
                prefilling.add(progress.prefilling)
            await asyncio.sleep(0.02)
        assert len(seen) > 5
        assert 1 in prefilling
        # While tokens are decoded
        await first
        before = await engine.progress(5)
        await anext(answer)
        await anext(answer)
        assert (await engine.progress(5)).counter > before.counter
        assert (before.running, before.prefilling) == (1, 0)
        assert 0 < before.free_ratio < 1
    finally:
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        await answer.aclose()


async def test_a_probe_passes_beside_full_slots_and_spares_their_cache(running: RunningEngine) -> None:
    """Four streams on four slots: the probe has a slot of its own."""
    engine = running.engine
    # Given a prompt that was answered, and probes since
    prompt = await prompt_for(engine, "What is photosynthesis?")
    await collect(engine, prompt, 2)
    for _ in range(6):
        await engine.micro_inference(5)
    # Then it is still in its slot
    cached = (await collect(engine, prompt, 2))[-1].cached
    assert cached is not None
    assert cached >= len(prompt) - 1
    # And with every slot busy a probe still passes
    prompts = [await prompt_for(engine, f"Tell me a story about the number {n}.") for n in range(4)]
    order = [Generation(prompt, 600, sampling={**GREEDY, "ignore_eos": True}) for prompt in prompts]
    answers = [engine.generate(one, 5) for one in order]
    try:
        await asyncio.gather(*(anext(answer) for answer in answers))
        assert (await engine.progress(5)).running == 4
        assert await engine.micro_inference(5) >= 0
        assert (await engine.progress(5)).running == 4
    finally:
        for answer in answers:
            await answer.aclose()


async def test_bad_requests_are_rejected_with_the_engines_own_words(running: RunningEngine) -> None:
    """4xx: no other engine would do better."""
    engine = running.engine
    for order, said in [
        (Generation([500] * 1100, 4), b"exceeds the available context size"),
        (Generation([], 4), b"must not be empty"),
        (Generation([10**8], 4), b"invalid tokens"),
        (Generation([1], 4, sampling={"temperature": "hot"}), b"temperature"),
        (Generation([1], 4, sampling={"grammar": "root ::= ("}), b"grammar"),
        (Generation([1], 4, min_tokens=2), b"min_tokens"),
    ]:
        with pytest.raises(EngineRejected) as caught:
            await anext(engine.generate(order, 5))
        assert caught.value.status == 400
        assert said in caught.value.body
    with pytest.raises(EngineRejected):
        await engine.render({"messages": "no list"}, 5)


async def test_a_json_schema_shapes_the_answer_and_logprobs_come_when_asked(running: RunningEngine) -> None:
    """Features that reach the engine through their OpenAI names."""
    schema = {"type": "object", "properties": {"a": {"enum": [1]}}, "required": ["a"], "additionalProperties": False}
    chunks = await collect(
        running.engine,
        await prompt_for(running.engine, "Say something."),
        60,
        response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}},
        logprobs=True,
        top_logprobs=2,
    )
    assert "".join(text(chunks).split()) == '{"a":1}'
    assert next(chunk for chunk in chunks if chunk.text).logprobs


async def test_a_seeded_answer_repeats_itself(running: RunningEngine) -> None:
    """From the original prompt, with the same seed (class `replayed`)."""
    prompt = await prompt_for(running.engine, "Tell me a story.")
    first = await collect(running.engine, prompt, 24, temperature=0.9, seed=11)
    again = await collect(running.engine, prompt, 24, temperature=0.9, seed=11)
    other = await collect(running.engine, prompt, 24, temperature=0.9, seed=12)
    assert text(first) == text(again)
    assert text(first) != text(other)
