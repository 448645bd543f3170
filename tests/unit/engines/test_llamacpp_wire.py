"""Events of an answer, tags and metrics as llama.cpp writes them."""

import pytest

from engines import llamacpp_wire as wire
from engines.base import EngineBroken, EngineRejected
from engines.sse import Event

EXACT = {"threads": "1", "ubatch": "32", "kv": "separate"}


@pytest.mark.parametrize(
    "event",
    [
        Event("", b"no json"),
        Event("", b"[1]"),
        Event("", b'{"error":{"code":500,"message":"x"}}'),
        Event("error", b'{"code":503}'),
        Event("", b'{"error":"x"}'),
    ],
)
def test_a_broken_event_or_a_server_error_breaks_the_answer(event: Event) -> None:
    """Another engine may still answer."""
    with pytest.raises(EngineBroken):
        wire.answer(event)


def test_a_client_error_in_mid_answer_is_a_rejection() -> None:
    """Another engine would say the same."""
    with pytest.raises(EngineRejected) as caught:
        wire.answer(Event("", b'{"error":{"code":400,"message":"x"}}'))
    assert caught.value.status == 400


@pytest.mark.parametrize(
    ("change", "invariant"),
    [
        ({}, True),
        ({"threads": "2"}, False),
        ({"ubatch": "64"}, False),
        ({"kv": "unified"}, False),
        ({"ubatch": "?"}, False),
    ],
)
def test_only_the_exactness_settings_make_an_engine_invariant(change: dict[str, str], invariant: bool) -> None:
    """All three are needed."""
    assert wire.invariant({**EXACT, **change}) is invariant


def test_a_server_without_our_tags_is_not_invariant() -> None:
    """Never assumed."""
    assert wire.invariant(wire.own_tags(["chat", "other:threads=1"])) is False


def test_metrics_are_read_by_name() -> None:
    """Comments are skipped."""
    assert wire.metrics(b"# HELP a:b c\na:b 5\na:c 0.5\n") == {"a:b": 5.0, "a:c": 0.5}


@pytest.mark.parametrize(
    ("slot", "prefilling"),
    [
        ({"is_processing": False}, False),
        ({"is_processing": True, "next_token": [{"n_decoded": 0}]}, True),
        ({"is_processing": True, "next_token": {"n_decoded": 0}}, True),
        ({"is_processing": True, "next_token": [{"n_decoded": 3}]}, False),
        ({"is_processing": True}, False),
    ],
)
def test_a_slot_computes_a_prompt_until_its_first_token(slot: dict[str, object], prefilling: bool) -> None:
    """As /slots shows it, in new builds and old ones."""
    assert wire.prefilling(slot) is prefilling
