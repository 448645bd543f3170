"""Framing of answers."""

from typing import Any, Literal

import orjson
import pytest

from api import sse


def _events(data: bytes) -> list[Any]:
    return [orjson.loads(block[6:]) for block in data.split(b"\n\n") if block and block != b"data: [DONE]"]


@pytest.mark.parametrize("kind", ["chat", "completion"])
def test_a_stream_has_one_id_and_ends_with_finish_usage_and_done(kind: Literal["chat", "completion"]) -> None:
    """The whole life of an answer, as OpenAI's clients expect it."""
    # Given
    framer = sse.Framer(kind, "answer-1", 7, "m", include_usage=True)
    # When
    data = framer.text('a "quoted"\n') + framer.text("é😀") + framer.end("stop", sse.usage(3, 2))
    # Then
    assert data.endswith(b"data: [DONE]\n\n")
    assert data.count(b"[DONE]") == 1
    events = _events(data)
    assert {event["id"] for event in events} == {"answer-1"}
    assert {event["created"] for event in events} == {7}
    assert [event["usage"] for event in events[:-1]] == [None] * (len(events) - 1)
    assert events[-1]["usage"] == {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    assert events[-1]["choices"] == []
    choices = [event["choices"][0] for event in events[:-1]]
    assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + ["stop"]
    if kind == "chat":
        assert [choice["delta"].get("role") for choice in choices] == ["assistant", None, None, None]
        assert "".join(choice["delta"].get("content", "") for choice in choices) == 'a "quoted"\né😀'
    else:
        assert "".join(choice["text"] for choice in choices) == 'a "quoted"\né😀'


def test_usage_is_left_out_unless_asked_for() -> None:
    """A client that did not ask must not see a chunk without choices."""
    framer = sse.Framer("chat", "x", 1, "m")
    assert b"usage" not in framer.text("a") + framer.end("length", sse.usage(1, 1))


def test_an_answer_without_text_still_has_a_role() -> None:
    """An engine may end at once; the client's message needs its role all the same."""
    events = _events(sse.Framer("chat", "x", 1, "m").end("stop", sse.usage(1, 0)))
    assert events[0]["choices"][0]["delta"]["role"] == "assistant"


def test_token_ids_are_shown_only_on_request() -> None:
    """`return_token_ids` adds what vLLM adds."""
    assert b"token_ids" not in sse.Framer("chat", "x", 1, "m").text("a", [1])
    event = _events(sse.Framer("completion", "x", 1, "m", token_ids=True).text("a", [1, 2]))[0]
    assert event["choices"][0]["token_ids"] == [1, 2]


def test_a_comment_is_one_line_and_an_error_has_no_done() -> None:
    """The default ping style is the only one safe with every client."""
    assert sse.comment("ping", "comment") == b": ping\n"
    assert sse.comment("ping", "comment-blank") == b": ping\n\n"
    assert sse.error(b'{"error":\n1}') == b'data: {"error": 1}\n\n'
