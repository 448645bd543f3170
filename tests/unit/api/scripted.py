"""A stream's surroundings without any Redis: nodes with scripted engines, and a client that keeps what it is told."""

import asyncio
import time
from dataclasses import replace
from typing import Any, cast

import orjson

from api.context import Context
from api.requests import parse
from api.streams import Piece, Stream
from engines.base import Chunk
from recovery.registry import Node, NodeState
from tests.rigs.fake_engine import FakeEngine

REQUEST = {
    "resume_patience_ms": 20,
    "resume_deadline_s": 3,
    "silence_timeout_s": 0.3,
    "first_token_timeout_s": 0.5,
}


class FakeClient:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.text = ""
        self.usage: dict[str, int] = {}
        self.reason = ""
        self.got = asyncio.Event()
        self.paused = asyncio.Event()

    async def deliver(self, pieces: list[Piece]) -> None:
        """Keep the text."""
        self.text += "".join(text for text, _ids in pieces)
        self.got.set()

    async def pause(self) -> None:
        """Keep that it paused."""
        self.said.append("pause")
        self.paused.set()

    async def resumed(self, note: str) -> None:
        """Keep the note, less its time."""
        self.said.append(note.rsplit(" gap_ms", 1)[0])

    async def finish(self, reason: str, usage: dict[str, int]) -> None:
        """Keep how it ended, once."""
        assert not self.reason
        self.reason, self.usage = reason, usage


def serve(context: Context, **scripts: Any) -> dict[str, FakeEngine]:
    """Put one fake node per name into the table, preferred in alphabetical order."""
    engines, nodes = {}, []
    for name, script in scripts.items():
        url = f"fake://{name}"
        nodes.append(
            Node(
                name, 1, NodeState.ALIVE, 1.0, engine_url=url, kind="fake", model="m", identity="same", context=100,
                slots=4, invariant=True, deterministic_seed=True,
            )
        )  # fmt: skip
        engines[name] = FakeEngine(script)
    context.table.take(nodes, time.monotonic())
    context.table._engines = {f"fake://{name}": cast("Any", engine) for name, engine in engines.items()}
    return engines


def forget_seeds(context: Context) -> None:
    """Make the engines such as do not repeat a seeded run."""
    nodes = [replace(node, deterministic_seed=False) for node in context.table.nodes.values()]
    context.table.take(nodes, time.monotonic())


def make_stream(context: Context, **fields: Any) -> Stream:
    """Return a stream for a greedy completion of four tokens, or what ``fields`` say."""
    body = {"model": "m", "prompt": "x", "temperature": 0, "max_tokens": 4, **fields}
    return Stream(context, parse("completion", orjson.dumps(body)), "r1")


def words(text: str, first: int = 0) -> list[Chunk]:
    """Return a token per letter, with ids from ``first`` on."""
    return [Chunk(letter, (first + at,)) for at, letter in enumerate(text)]


def end(generated: int, reason: Any = "length") -> Chunk:
    """Return an answer's last chunk."""
    return Chunk("", (), finish=reason, generated=generated)
