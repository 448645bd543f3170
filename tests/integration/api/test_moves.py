"""A live stream moved from node to node again and again, through characters of several tokens."""

from typing import Any

import orjson
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
        {"temperature": 0, "presence_penalty": 1.0, "frequency_penalty": 0.5},
    ],
    ids=["greedy", "seeded", "stop string", "penalties"],
)
async def test_a_stream_moved_many_times_is_the_same_stream(
    redis_url: str, store: Store, steady: RunningEngine, sampling: dict[str, Any]
) -> None:
    """Each move cuts elsewhere, some within a character; text and ids come out unharmed (requirements E1).

    Penalties count generated tokens, which a longer prompt would hide: replayed, not continued (case G3-02).
    """
    # Given
    epochs = {name: await register(store, name, steady.url) for name in _NODES}
    body = {"model": MODEL, "prompt": _PROMPT, "max_tokens": 90, "ignore_eos": True, **sampling}
    async with running_gateway(redis_url, request={"max_retries": 10}, routing={"policy": "fastest"}) as gateway:
        await gateway.ready()
        calm = await collect_raw(gateway.session, gateway.url, body, path="completions")
        mover = _Mover(store, gateway.id, epochs)
        # When
        got = await collect_raw(gateway.session, gateway.url, body, mover, path="completions")
    # Then
    assert mover.moves >= 5
    assert (got.text, got.error, got.finishes) == (calm.text, "", calm.finishes)
    assert got.ids == calm.ids
    assert sum(comment.startswith("resumed") for comment in got.comments) >= 5


async def test_an_answer_bound_to_a_schema_is_valid_however_often_it_is_moved(
    redis_url: str, store: Store, steady: RunningEngine
) -> None:
    """A grammar begins at its root in each attempt: its state must be rebuilt, or JSON would be nested (case G3-01)."""
    # Given
    epochs = {name: await register(store, name, steady.url) for name in _NODES}
    kind = {"type": "object", "properties": {"class": {"enum": ["insect", "arachnid"]}}, "required": ["class"]}
    properties = {"animal": {**kind, "additionalProperties": False}, "poisonous": {"type": "boolean"}}
    schema = {
        "type": "object", "properties": properties, "required": list(properties), "additionalProperties": False
    }  # fmt: skip
    body = {
        "model": MODEL, "messages": [{"role": "user", "content": "Describe a spider."}], "max_tokens": 120,
        "response_format": {"type": "json_schema", "json_schema": {"name": "animal", "schema": schema}},
    }  # fmt: skip
    async with running_gateway(redis_url, request={"max_retries": 10}, routing={"policy": "fastest"}) as gateway:
        await gateway.ready()
        calm = await collect_raw(gateway.session, gateway.url, body)
        mover = _Mover(store, gateway.id, epochs, 3)
        # When
        got = await collect_raw(gateway.session, gateway.url, body, mover)
    # Then
    assert mover.moves >= 2
    assert got.headers["unbroken-resume"] == "replayed"
    assert set(orjson.loads(got.text)) == set(properties)
    assert (got.text, got.ids, got.finishes, got.error) == (calm.text, calm.ids, ["stop"], "")


class _Mover:
    """Moves a stream from node to node, in the order of their names, each time it has grown a little."""

    def __init__(self, store: Store, gateway: str, epochs: dict[str, int], every: int = 2) -> None:
        self.moves = 0
        self._store, self._gateway, self._epochs, self._every = store, gateway, epochs, every

    async def __call__(self, collected: Collected) -> None:
        """Look at what was collected, and move if it is time."""
        if self.moves >= len(_NODES) - 1 or len(collected.times) < self._every * (self.moves + 1):
            return
        source, target = _NODES[self.moves], _NODES[self.moves + 1]
        entries = await journal.entries_on(self._store, source, self._epochs[source])
        if not entries or entries[0].attempt != self.moves:
            return
        verdict, standing = await journal.assign(
            self._store, entries[0].request, self.moves, target, self._epochs[target], "job:test"
        )
        assert verdict == "assigned"
        assert standing is not None
        await journal.push(self._store, self._gateway, standing)
        self.moves += 1
