"""OpenAI-named sampling parameters in llama.cpp's words.

Pure. Anything neither OpenAI's nor known here goes to the engine unchanged.
"""

from collections.abc import Mapping
from typing import Any

import orjson

from engines.base import EngineRejected

_RENAMED = {"repetition_penalty": "repeat_penalty"}

# Handled elsewhere (ids, budgets, streaming), or of no meaning to an engine.
_NOT_SAMPLING = frozenset(
    {
        "model",
        "messages",
        "prompt",
        "stream",
        "stream_options",
        "max_tokens",
        "max_completion_tokens",
        "min_tokens",
        "n",
        "best_of",
        "echo",
        "user",
        "metadata",
        "store",
        "service_tier",
        "tools",
        "tool_choice",
        "parallel_tool_calls",
        "functions",
        "function_call",
        "suffix",
        "return_token_ids",
        "reasoning_effort",
        "chat_template_kwargs",
        "add_generation_prompt",
        "continue_final_message",
        "logprobs",
        "top_logprobs",
        "response_format",
        "return_tokens",
        "cache_prompt",
        "n_predict",
        "id_slot",
        "id_task",
    }
)


def to_llamacpp(sampling: Mapping[str, Any], min_tokens: int = 0) -> dict[str, Any]:
    """Return the `/completion` fields for OpenAI-named ``sampling``.

    Raises EngineRejected (400) for what llama.cpp cannot do and would ignore silently.
    """
    if min_tokens > 0:
        raise rejected("min_tokens is not supported by the llama.cpp engine")
    fields: dict[str, Any] = {"temperature": 1.0}  # OpenAI's default; llama.cpp's own is 0.8
    for name, value in sampling.items():
        if value is None or name in _NOT_SAMPLING:
            continue
        if name == "stop":
            fields["stop"] = [value] if isinstance(value, str) else value
        elif name == "seed":
            fields["seed"] = _seed(value)
        elif name == "logit_bias":
            fields["logit_bias"] = _bias(value)
        else:
            fields[_RENAMED.get(name, name)] = value
    fields.update(_schema(sampling.get("response_format")))
    fields.update(_probabilities(sampling))
    return fields


def rejected(message: str) -> EngineRejected:
    """Return a 400 in OpenAI's form, for what the adapter itself refuses."""
    error = {"message": message, "type": "invalid_request_error", "code": 400}
    return EngineRejected(400, orjson.dumps({"error": error}))


def _seed(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise rejected("seed must be an integer")
    # 32 bits in llama.cpp, where all ones would mean "random".
    return min(value & 0xFFFFFFFF, 0xFFFFFFFE)


def _bias(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    try:
        return [[int(token), float(bias)] for token, bias in value.items()]
    except (TypeError, ValueError) as error:
        raise rejected("logit_bias must map token ids to numbers") from error


def _schema(response_format: Any) -> dict[str, Any]:
    match response_format:
        case None | {"type": "text"}:
            return {}
        case {"type": "json_object", **rest}:
            return {"json_schema": rest.get("schema") or {"type": "object"}}
        case {"type": "json_schema", "json_schema": {"schema": Mapping() as schema}}:
            return {"json_schema": schema}
    raise rejected("response_format must be of type text, json_object or json_schema (with its schema)")


def _probabilities(sampling: Mapping[str, Any]) -> dict[str, Any]:
    """Chat says ``logprobs: true, top_logprobs: 5``, completions ``logprobs: 5``."""
    wanted = sampling.get("logprobs")
    if wanted is None or wanted is False:
        return {}
    if wanted is True:
        return {"n_probs": max(1, sampling.get("top_logprobs") or 0)}
    return {"n_probs": max(1, wanted)}
