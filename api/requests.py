"""What a client asked for, checked: one `Ask` for both inference routes.

Pure. Wrong values are refused with the field's name; unknown fields go to the engine.
"""

import math
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import orjson

from api.errors import ApiError, invalid
from recovery.requeue import is_greedy

MAX_BODY = 8 * 1024 * 1024
"""Bytes of a request body."""

_OURS = frozenset({
    "model", "messages", "prompt", "stream", "stream_options", "max_tokens", "max_completion_tokens",
    "min_tokens", "n", "best_of", "user", "metadata", "store", "return_token_ids",
})  # fmt: skip
_NUMBERS: Mapping[str, tuple[float, float]] = {
    "temperature": (0, 100),
    "top_p": (0, 1),
    "frequency_penalty": (-100, 100),
    "presence_penalty": (-100, 100),
}
_NOT_YET = ("logprobs", "top_logprobs", "tools", "functions", "echo", "suffix")
"""Fields whose effect would be missing from the answer without a word."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One inference request."""

    kind: Literal["chat", "completion"]
    model: str
    stream: bool
    include_usage: bool
    max_tokens: int | None
    min_tokens: int
    sampling: dict[str, Any]
    """Everything for the engine; a sampled request always has a seed, so that it can be replayed."""
    chat: dict[str, Any] | None = None
    """The body as it came, for the engine's chat template."""
    prompt: str | tuple[int, ...] | None = None
    """Text, or token ids."""
    return_token_ids: bool = False
    """Whether each chunk carries its `token_ids`, as vLLM's do."""


def parse(kind: Literal["chat", "completion"], body: bytes) -> Ask:
    """Check a request body. Raises ApiError (400) naming the field that is wrong."""
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise invalid(f"the body is not JSON: {error}", code="invalid_json") from error
    if not isinstance(fields, dict):
        raise invalid("the body must be a JSON object", code="invalid_json")
    _refuse_unsupported(fields)
    model = fields.get("model")
    if not isinstance(model, str) or not model:
        raise invalid("model must be the name of a model", "model")
    stream = _flag(fields, "stream")
    return Ask(
        kind=kind,
        model=model,
        stream=stream,
        include_usage=_include_usage(fields, stream=stream),
        max_tokens=_max_tokens(fields),
        min_tokens=_integer(fields, "min_tokens", 0) or 0,
        sampling=_sampling(fields),
        chat=_chat(fields) if kind == "chat" else None,
        prompt=_prompt(fields) if kind == "completion" else None,
        return_token_ids=_flag(fields, "return_token_ids"),
    )


def budget(ask: Ask, prompt_tokens: int, context: int, default: int) -> int:
    """Return how many tokens the answer may have. Raises ApiError (400) when the prompt leaves no room."""
    if prompt_tokens + 1 > context:
        raise ApiError(
            400,
            f"the prompt has {prompt_tokens} tokens, which leaves no room for an answer: "
            f"the model's context is {context} tokens",
            code="context_length_exceeded",
            param="messages" if ask.kind == "chat" else "prompt",
        )
    return min(ask.max_tokens or default, context - prompt_tokens)


def _refuse_unsupported(fields: dict[str, Any]) -> None:
    for name in ("n", "best_of"):
        count = _integer(fields, name, 1)
        if count is not None and count > 1:
            raise invalid(f"{name} greater than 1 is not supported yet", name, "not_supported")
    for name in _NOT_YET:
        if fields.get(name):
            raise invalid(f"{name} is not supported yet", name, "not_supported")


def _include_usage(fields: dict[str, Any], *, stream: bool) -> bool:
    options = fields.get("stream_options")
    if options is None:
        return False
    if not isinstance(options, dict):
        raise invalid("stream_options must be an object", "stream_options")
    if not stream:
        raise invalid("stream_options needs stream: true", "stream_options")
    return _flag(options, "include_usage", "stream_options.include_usage")


def _max_tokens(fields: dict[str, Any]) -> int | None:
    newer = _integer(fields, "max_completion_tokens", 1)
    older = _integer(fields, "max_tokens", 1)
    return older if newer is None else newer


def _sampling(fields: dict[str, Any]) -> dict[str, Any]:
    for name, (low, high) in _NUMBERS.items():
        value = fields.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise invalid(f"{name} must be a number", name)
        if not low <= value <= high:
            raise invalid(f"{name} must be between {low} and {high} (is {value})", name)
    _integer(fields, "seed", None)
    stop = fields.get("stop")
    if stop is not None and not (isinstance(stop, str) or _all(stop, str)):
        raise invalid("stop must be a string or a list of strings", "stop")
    sampling = {name: value for name, value in fields.items() if name not in _OURS and value is not None}
    if not is_greedy(sampling) and "seed" not in sampling:
        sampling["seed"] = secrets.randbelow(2**31)
    return sampling


def _chat(fields: dict[str, Any]) -> dict[str, Any]:
    messages = fields.get("messages")
    if not isinstance(messages, list) or not messages:
        raise invalid("messages must be a list with at least one message", "messages")
    for number, message in enumerate(messages):
        where = f"messages[{number}]"
        if not isinstance(message, dict):
            raise invalid(f"{where} must be an object", where)
        if not isinstance(message.get("role"), str):
            raise invalid(f"{where}.role must be a string", f"{where}.role")
        content = message.get("content")
        if content is not None and not (isinstance(content, str) or _all(content, dict)):
            raise invalid(f"{where}.content must be a string or a list of parts", f"{where}.content")
    return fields


def _prompt(fields: dict[str, Any]) -> str | tuple[int, ...]:
    prompt = fields.get("prompt")
    if isinstance(prompt, str):
        if prompt:
            return prompt
        raise invalid("prompt must not be empty", "prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        return _prompt({"prompt": prompt[0]})
    if isinstance(prompt, list) and prompt and all(type(token) is int and 0 <= token < 2**32 for token in prompt):
        return tuple(prompt)
    raise invalid("prompt must be a string or a list of token ids (one prompt a request)", "prompt")


def _flag(fields: dict[str, Any], name: str, shown: str = "") -> bool:
    value = fields.get(name)
    if value is None:
        return False
    if not isinstance(value, bool):
        raise invalid(f"{shown or name} must be true or false", shown or name)
    return value


def _integer(fields: dict[str, Any], name: str, least: int | None) -> int | None:
    value = fields.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise invalid(f"{name} must be an integer", name)
    if least is not None and value < least:
        raise invalid(f"{name} must be at least {least} (is {value})", name)
    return value


def _all(value: Any, kind: type) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, kind) for item in value)
