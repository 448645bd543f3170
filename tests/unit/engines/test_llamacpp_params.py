"""OpenAI's parameter names in llama.cpp's words."""

from typing import Any

import orjson
import pytest

from engines.base import EngineRejected
from engines.llamacpp_params import to_llamacpp


@pytest.mark.parametrize(
    ("openai", "llamacpp"),
    [
        ({}, {"temperature": 1.0}),
        ({"temperature": None}, {"temperature": 1.0}),
        (
            {"temperature": 0, "top_p": 0.5, "top_k": 3, "min_p": 0.1},
            {"temperature": 0, "top_p": 0.5, "top_k": 3, "min_p": 0.1},
        ),
        ({"stop": "x"}, {"temperature": 1.0, "stop": ["x"]}),
        ({"stop": ["x", "y"]}, {"temperature": 1.0, "stop": ["x", "y"]}),
        ({"repetition_penalty": 1.2}, {"temperature": 1.0, "repeat_penalty": 1.2}),
        ({"seed": -1}, {"temperature": 1.0, "seed": 0xFFFFFFFE}),
        ({"seed": 2**40 + 5}, {"temperature": 1.0, "seed": 5}),
        ({"logit_bias": {"5": -100}}, {"temperature": 1.0, "logit_bias": [[5, -100.0]]}),
        ({"response_format": {"type": "text"}}, {"temperature": 1.0}),
        ({"response_format": {"type": "json_object"}}, {"temperature": 1.0, "json_schema": {"type": "object"}}),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "array"}}}},
            {"temperature": 1.0, "json_schema": {"type": "array"}},
        ),
        ({"logprobs": True, "top_logprobs": 4}, {"temperature": 1.0, "n_probs": 4}),
        ({"logprobs": 2}, {"temperature": 1.0, "n_probs": 2}),
        ({"mirostat": 2}, {"temperature": 1.0, "mirostat": 2}),
        ({"model": "m", "stream": True, "max_tokens": 5, "n_predict": 9}, {"temperature": 1.0}),
    ],
)
def test_each_parameter_is_translated(openai: dict[str, Any], llamacpp: dict[str, Any]) -> None:
    """Known ones renamed, the request's own dropped, unknown ones passed on."""
    assert to_llamacpp(openai) == llamacpp


@pytest.mark.parametrize(
    ("openai", "named"),
    [
        ({"seed": "x"}, "seed"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
    ],
)
def test_what_llamacpp_would_misread_is_refused_by_name(openai: dict[str, Any], named: str) -> None:
    """A 400 that names the field, in OpenAI's form."""
    with pytest.raises(EngineRejected) as caught:
        to_llamacpp(openai)
    assert caught.value.status == 400
    assert named in orjson.loads(caught.value.body)["error"]["message"]


def test_min_tokens_is_refused_rather_than_ignored() -> None:
    """llama.cpp has no such thing."""
    with pytest.raises(EngineRejected, match="min_tokens"):
        to_llamacpp({}, min_tokens=3)
