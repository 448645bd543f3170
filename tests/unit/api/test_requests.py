"""Checking what clients send."""

from typing import Any

import orjson
import pytest

from api.errors import ApiError
from api.requests import budget, parse

_CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


def _refused(fields: Any, kind: Any = "chat") -> ApiError:
    body = fields if isinstance(fields, bytes) else orjson.dumps(fields)
    with pytest.raises(ApiError) as caught:
        parse(kind, body)
    assert caught.value.status == 400
    assert set(orjson.loads(caught.value.body)["error"]) == {"message", "type", "param", "code"}
    return caught.value


@pytest.mark.parametrize(
    ("extra", "param"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"n": 2}, "n"),
        ({"n": 0}, "n"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": -1}, "temperature"),
        ({"top_p": 2}, "top_p"),
        ({"seed": "x"}, "seed"),
        ({"stop": 5}, "stop"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": ["hi"]}, "messages[0]"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"model": 5}, "model"),
        ({"model": ""}, "model"),
        ({"logprobs": True}, "logprobs"),
        ({"tools": [{}]}, "tools"),
    ],
)
def test_a_wrong_field_is_refused_by_name(extra: dict[str, Any], param: str) -> None:
    """Each wrong value gets a 400 that names its field."""
    error = _refused({**_CHAT, **extra})
    assert error.param == param
    assert param.split("[")[0].split(".")[0] in str(error)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"5", b'"x"', b"\xff"])
def test_what_is_no_json_object_is_refused(body: bytes) -> None:
    """Malformed bodies are the client's fault, said clearly."""
    assert _refused(body).code == "invalid_json"


@pytest.mark.parametrize("prompt", [None, "", [], ["a", "b"], [1.5], [-1], [True], [[]], {}])
def test_a_wrong_prompt_is_refused(prompt: Any) -> None:
    """One prompt, as text or ids."""
    assert _refused({"model": "m", "prompt": prompt}, "completion").param == "prompt"


@pytest.mark.parametrize(("prompt", "kept"), [("a", "a"), (["a"], "a"), ([1, 2], (1, 2)), ([[3]], (3,))])
def test_a_prompt_may_be_text_or_ids(prompt: Any, kept: Any) -> None:
    """All forms OpenAI allows for one prompt."""
    assert parse("completion", orjson.dumps({"model": "m", "prompt": prompt})).prompt == kept


def test_a_sampled_request_gets_a_seed_and_a_greedy_one_does_not() -> None:
    """Without a seed a sampled answer could never be replayed (design, section 7)."""
    assert "seed" in parse("chat", orjson.dumps(_CHAT)).sampling
    assert parse("chat", orjson.dumps({**_CHAT, "seed": 5})).sampling["seed"] == 5
    assert "seed" not in parse("chat", orjson.dumps({**_CHAT, "temperature": 0})).sampling


def test_unknown_fields_go_to_the_engine_and_ours_do_not() -> None:
    """The engine may know parameters that we do not."""
    ask = parse("chat", orjson.dumps({**_CHAT, "min_p": 0.1, "user": "u", "max_tokens": 4, "temperature": 0}))
    assert ask.sampling == {"min_p": 0.1, "temperature": 0}
    assert ask.max_tokens == 4


def test_the_budget_is_the_least_of_wish_default_and_room() -> None:
    """And a prompt that leaves no room is refused with both numbers."""
    ask = parse("chat", orjson.dumps(_CHAT))
    wishing = parse("chat", orjson.dumps({**_CHAT, "max_tokens": 5_000}))
    assert budget(ask, 10, 100, 50) == 50
    assert budget(ask, 80, 100, 50) == 20
    assert budget(wishing, 10, 100, 50) == 90
    assert budget(ask, 99, 100, 50) == 1
    with pytest.raises(ApiError, match=r"100 tokens.*100 tokens") as caught:
        budget(ask, 100, 100, 50)
    assert caught.value.code == "context_length_exceeded"
