"""OpenAI's answer as bytes: stream events built from prefixes made once per request, and the whole-answer form."""

from collections.abc import Sequence
from typing import Any, Literal

import orjson

DONE = b"data: [DONE]\n\n"


class Framer:
    """Frames one answer: a single id, created and model, the role first, the usage last."""

    __slots__ = ("_after", "_before", "_chat", "_head", "_ids", "_usage", "_used_role", "id")

    def __init__(
        self,
        kind: Literal["chat", "completion"],
        answer_id: str,
        created: int,
        model: str,
        *,
        include_usage: bool = False,
        token_ids: bool = False,
    ) -> None:
        self.id = answer_id
        self._chat = kind == "chat"
        self._ids = token_ids
        self._usage = include_usage
        self._used_role = False
        thing = "chat.completion.chunk" if self._chat else "text_completion"
        head = orjson.dumps({"id": answer_id, "object": thing, "created": created, "model": model})
        self._head = b"data: " + head[:-1]
        inner = b'"delta":{"content":' if self._chat else b'"text":'
        self._before = self._head + b',"choices":[{"index":0,' + inner
        tail = b',"usage":null}' if include_usage else b"}"
        self._after = b',"logprobs":null,"finish_reason":null}]' + tail + b"\n\n"

    def text(self, text: str, ids: Sequence[int] = ()) -> bytes:
        """Return the event of one piece of text."""
        piece = orjson.dumps(text)
        if self._chat:
            piece += b"}"
        if self._ids:
            piece += b',"token_ids":' + orjson.dumps(list(ids))
        event = self._before + piece + self._after
        return event if self._used_role else self.role() + event

    def role(self) -> bytes:
        """Return the event that opens a chat answer, once; nothing afterwards."""
        if self._used_role:
            return b""
        self._used_role = True
        if not self._chat:
            return b""
        return self._event([{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}])

    def end(self, reason: str, usage: dict[str, int]) -> bytes:
        """Return everything after the last text: finish reason, usage where asked for, ``[DONE]``."""
        inner: dict[str, Any] = {"delta": {}} if self._chat else {"text": ""}
        events = self.role() + self._event([{"index": 0, **inner, "logprobs": None, "finish_reason": reason}])
        if self._usage:
            events += self._event([], usage)
        return events + DONE

    def _event(self, choices: list[dict[str, Any]], usage: dict[str, int] | None = None) -> bytes:
        rest: dict[str, Any] = {"choices": choices}
        if self._usage:
            rest["usage"] = usage
        return self._head + b"," + orjson.dumps(rest)[1:] + b"\n\n"


def whole(
    kind: Literal["chat", "completion"],
    answer_id: str,
    created: int,
    model: str,
    text: str,
    reason: str,
    usage: dict[str, int],
    ids: Sequence[int] | None = None,
) -> bytes:
    """Return a non-streaming answer."""
    choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": reason}
    if kind == "chat":
        choice["message"] = {"role": "assistant", "content": text, "refusal": None}
    else:
        choice["text"] = text
    if ids is not None:
        choice["token_ids"] = list(ids)
    return orjson.dumps({
        "id": answer_id,
        "object": "chat.completion" if kind == "chat" else "text_completion",
        "created": created,
        "model": model,
        "choices": [choice],
        "usage": usage,
    })  # fmt: skip


def comment(text: str, style: Literal["comment", "comment-blank"]) -> bytes:
    """Return a comment line. One newline is safe with every client tried; a blank line crashes some."""
    return f": {text}\n".encode() + (b"\n" if style == "comment-blank" else b"")


def error(body: bytes) -> bytes:
    """Return the event that ends a stream that cannot go on; no ``[DONE]`` follows it."""
    return b"data: " + body.replace(b"\r", b" ").replace(b"\n", b" ") + b"\n\n"


def usage(prompt: int, completion: int) -> dict[str, int]:
    """Return the usage object."""
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
