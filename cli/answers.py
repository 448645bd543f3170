"""Streams one answer through the real openai client and keeps what a client can see of it."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from openai import AsyncOpenAI
from openai.types.chat import ChatCompletionMessageParam


@dataclass(slots=True)
class Answer:
    """One streamed answer as its client saw it."""

    prompt: str
    system: str = ""
    """System message, if any."""
    text: str = ""
    ids: list[int] = field(default_factory=list)
    arrivals: list[float] = field(default_factory=list)
    """time.monotonic() of each piece of text."""
    finish_reason: str | None = None
    request_id: str = ""
    node: str = ""
    """Node of the first attempt."""
    planned: str = ""
    """Exactness class a resume would have."""
    completion_tokens: int = 0
    on_text: Callable[[str], None] | None = None
    """Called with each piece as it comes."""
    opened: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once the response's headers are here."""

    @property
    def messages(self) -> list[ChatCompletionMessageParam]:
        """The chat to send."""
        system: list[ChatCompletionMessageParam] = [{"role": "system", "content": self.system}] if self.system else []
        return [*system, {"role": "user", "content": self.prompt}]

    def longest_gap(self, since: float = 0.0) -> float:
        """Return the longest pause between two pieces, in seconds, of those that ended after `since`."""
        pauses = [
            after - before for before, after in zip(self.arrivals, self.arrivals[1:], strict=False) if after > since
        ]
        return max(pauses, default=0.0)


async def stream_answer(
    client: AsyncOpenAI,
    answer: Answer,
    *,
    model: str,
    max_tokens: int,
    **options: Any,
) -> Answer:
    """Fill `answer` by streaming a greedy chat completion. Raises openai.APIError."""
    raw = await client.chat.completions.with_raw_response.create(
        model=model,
        messages=answer.messages,
        max_tokens=max_tokens,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"return_token_ids": True, **options},
    )
    answer.request_id = raw.headers.get("unbroken-request-id", "")
    answer.node = raw.headers.get("unbroken-node", "")
    answer.planned = raw.headers.get("unbroken-resume", "")
    answer.opened.set()
    async with raw.parse() as stream:
        async for chunk in stream:
            if chunk.usage is not None:
                answer.completion_tokens = chunk.usage.completion_tokens
            for choice in chunk.choices:
                answer.ids += (choice.model_extra or {}).get("token_ids") or []
                if choice.finish_reason:
                    answer.finish_reason = choice.finish_reason
                if choice.delta.content:
                    answer.arrivals.append(time.monotonic())
                    answer.text += choice.delta.content
                    if answer.on_text is not None:
                        answer.on_text(choice.delta.content)
    return answer
