"""A live stream moved from node to node again and again, through characters of several tokens."""

from typing import Any

import pytest

from recovery import journal
from recovery.store import Store
from tests.rigs.engine import RunningEngine
from tests.rigs.gateway import MODEL, register, running_gateway
from tests.rigs.streams import Collected, collect_raw

_PROMPT = "😀🎉🐶 日本語 é 😀🎉🐶 日本語 é 😀🎉🐶 日本語 é 😀🎉🐶"


_NODES = "abcdefgh"
"""All of them the same engine: what matters is that each attempt begins anew."""


@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": 0},
        {"temperature": 1, "seed": 3},
        {"temperature": 0, "stop": ["zzz", "日本語 é 😀🎉🐶 日本x"]},
    ],
    ids=["greedy", "seeded", "stop string"],
)
async def test_a_stream_moved_many_times_is_the_same_stream(
    redis_url: str, store: Store, steady: RunningEngine, sampling: dict[str, Any]
) -> None:
    """Each move cuts elsewhere, some within a character; text and ids come out unharmed (requirements E1)."""
    # Given
    epochs = {name: await register(store, name, steady.url) for name in _NODES}
    body = {"model": MODEL, "prompt": _PROMPT, "max_tokens": 90, "ignore_eos": True, **sampling}
    async with running_gateway(redis_url, request={"max_retries": 10}) as gateway:
        await gateway.ready()
        calm = await collect_raw(gateway.session, gateway.url, body, path="completions")
        moves = 0

        async def move(collected: Collected) -> None:
            nonlocal moves
            if moves >= len(_NODES) - 1 or len(collected.times) < 2 * (moves + 1):
                return
            source, target = _NODES[moves], _NODES[moves + 1]
            entries = await journal.entries_on(store, source, epochs[source])
            if not entries or entries[0].attempt != moves:
                return
            verdict, standing = await journal.assign(
                store, entries[0].request, moves, target, epochs[target], "job:test"
            )
            assert verdict == "assigned"
            assert standing is not None
            await journal.push(store, gateway.id, standing)
            moves += 1

        # When
        got = await collect_raw(gateway.session, gateway.url, body, move, path="completions")
    # Then
    assert moves >= 5
    assert (got.text, got.error, got.finishes) == (calm.text, "", calm.finishes)
    assert got.ids == calm.ids
    assert sum(comment.startswith("resumed") for comment in got.comments) >= 5
