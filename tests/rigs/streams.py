"""Collecting streams: through the real openai client, and byte by byte with a raw one."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import openai
import orjson
from openai import AsyncOpenAI


@dataclass(slots=True)
class Collected:
    """What came out of one stream."""

    text: str = ""
    ids: list[int] = field(default_factory=list)
    """Token ids, when they were asked for."""
    answer_ids: set[str] = field(default_factory=set)
    """Values of the chunks' ``id``."""
    roles: int = 0
    finishes: list[str] = field(default_factory=list)
    usages: list[dict[str, Any]] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    """Monotonic time of each piece of text."""
    error: str = ""
    """Code of the error that ended it."""
    comments: list[str] = field(default_factory=list)
    """Raw collector only."""
    done: int = 0
    """Number of ``[DONE]``; raw collector only."""
    raw: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    started_after: float = 0.0
    """Seconds until the headers came."""

    @property
    def gap(self) -> float:
        """Longest silence between two pieces of text, seconds."""
        return max((b - a for a, b in zip(self.times, self.times[1:], strict=False)), default=0.0)

    def take(self, chunk: dict[str, Any]) -> None:
        """Take one chunk in."""
        if "error" in chunk:
            self.error = str(chunk["error"].get("code"))
            return
        self.answer_ids.add(chunk["id"])
        if chunk.get("usage"):
            self.usages.append(chunk["usage"])
        for choice in chunk["choices"]:
            delta = choice.get("delta") or {}
            self.roles += bool(delta.get("role"))
            piece = delta.get("content") or choice.get("text") or ""
            self.ids += choice.get("token_ids") or []
            if piece:
                self.text += piece
                self.times.append(time.monotonic())
            if choice.get("finish_reason"):
                self.finishes.append(choice["finish_reason"])


Watcher = Callable[[Collected], Any]
"""Called after each chunk; may return an awaitable."""


async def collect_openai(client: AsyncOpenAI, watch: Watcher | None = None, **request: Any) -> Collected:
    """Stream a chat (or, with ``prompt``, a completion) through the openai client; errors are noted, not raised."""
    collected = Collected()
    extra = {"extra_body": {"return_token_ids": True, **request.pop("extra_body", {})}}
    create: Any = client.completions.create if "prompt" in request else client.chat.completions.create
    try:
        async with await create(
            stream=True, stream_options={"include_usage": True}, **{"temperature": 0, **request}, **extra
        ) as stream:
            async for chunk in stream:
                collected.take(chunk.model_dump())
                await _call(watch, collected)
    except openai.APIError as error:
        collected.error = str(error.code)
    return collected


async def collect_raw(
    session: aiohttp.ClientSession,
    url: str,
    body: dict[str, Any],
    watch: Watcher | None = None,
    path: str = "chat/completions",
) -> Collected:
    """Stream over plain HTTP and keep everything, comments and bytes included."""
    collected = Collected()
    began = time.monotonic()
    payload = {"stream": True, "return_token_ids": True, "temperature": 0, **body}
    async with session.post(f"{url}/v1/{path}", json=payload) as answer:
        collected.started_after = time.monotonic() - began
        collected.headers = {name.lower(): value for name, value in answer.headers.items()}
        if answer.status != 200:
            collected.error = str((await answer.json())["error"]["code"])
            return collected
        async for line in answer.content:
            collected.raw += line
            if line.startswith(b":"):
                collected.comments.append(line[1:].decode().strip())
            elif line.startswith(b"data: [DONE]"):
                collected.done += 1
            elif line.startswith(b"data: "):
                collected.take(orjson.loads(line[6:]))
            else:
                continue
            await _call(watch, collected)
    return collected


async def _call(watch: Watcher | None, collected: Collected) -> None:
    if watch is not None:
        result = watch(collected)
        if asyncio.iscoroutine(result):
            await result
