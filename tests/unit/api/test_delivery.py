"""What is new to a client, over any number of attempts cut anywhere."""

from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.delivery import Delivery, Diverged
from engines.base import Chunk
from recovery.requeue import plan

_TOKENS = st.lists(st.text(alphabet="ab é😀", min_size=0, max_size=3), min_size=1, max_size=30)
"""Text of each token of an answer; its id is its position."""


def _chunks(draw: st.DrawFn, tokens: list[str], start: int) -> list[Chunk]:
    """Cut the answer from token `start` on into chunks, some of them unsure, as an adapter may."""
    chunks, at, run = [], start, start
    while at < len(tokens):
        size = draw(st.integers(1, 4))
        end = min(at + size, len(tokens))
        text = "".join(tokens[at:end])
        if draw(st.booleans()):
            chunks.append(Chunk(text, tuple(range(run, end))))
            run = end
        else:
            chunks.append(Chunk(text, sure=False))
        at = end
    sure = draw(st.booleans()) or run == len(tokens)
    ids = tuple(range(run, len(tokens))) if sure else ()
    chunks.append(Chunk("", ids, sure, finish="stop", generated=len(tokens) - start))
    return chunks


@given(st.data(), _TOKENS)
def test_any_cuts_and_any_chunking_give_the_same_answer(data: st.DataObject, tokens: list[str]) -> None:
    """Text once, ids once and in order, the full count, wherever and however often it is cut."""
    # Given
    delivery = Delivery()
    prompt = [1000]
    got = ""
    ids: list[int] = []
    cuts = data.draw(st.integers(0, 4))
    for attempt in range(cuts + 1):
        kind: Literal["exact", "replayed"] = data.draw(st.sampled_from(["exact", "replayed"]))
        order = plan(kind, prompt, delivery.ids, max_tokens=100)
        delivery.begin(order)
        start = len(delivery.ids) if kind == "exact" else 0
        chunks = data.draw(st.composite(_chunks)(tokens, start))
        # When
        if attempt < cuts:
            chunks = chunks[: data.draw(st.integers(0, len(chunks) - 1))]
        for chunk in chunks:
            text, new = delivery.accept(chunk)
            got += text
            ids += new
    # Then
    assert got == delivery.text == "".join(tokens)
    assert ids == delivery.ids == list(range(len(delivery.ids)))
    assert delivery.generated == len(tokens)


def _delivered() -> Delivery:
    delivery = Delivery()
    delivery.begin(plan("exact", [9], [], max_tokens=10))
    delivery.accept(Chunk("ab", (1, 2)))
    delivery.accept(Chunk("c", sure=False))
    return delivery


def test_text_beyond_the_boundary_must_be_repeated() -> None:
    """A resume starts at the last sure boundary; what the client has beyond it is checked and dropped."""
    delivery = _delivered()
    delivery.begin(plan("exact", [9], delivery.ids, max_tokens=10))
    assert delivery.accept(Chunk("cd", (3, 4))) == ("d", (3, 4))
    other = _delivered()
    other.begin(plan("exact", [9], other.ids, max_tokens=10))
    with pytest.raises(Diverged, match="text"):
        other.accept(Chunk("xd", (3, 4)))


def test_a_replay_that_differs_is_noticed_by_text_and_by_ids() -> None:
    """Same text by other tokens is another answer."""
    for chunk in (Chunk("ax", (1, 2)), Chunk("ab", (1, 7))):
        delivery = _delivered()
        delivery.begin(plan("replayed", [9], delivery.ids, max_tokens=10))
        with pytest.raises(Diverged):
            delivery.accept(chunk)


def test_an_attempt_that_ends_before_the_watermark_has_diverged() -> None:
    """A finish that comes too early must never be passed on as the answer's."""
    delivery = _delivered()
    delivery.begin(plan("replayed", [9], delivery.ids, max_tokens=10))
    with pytest.raises(Diverged, match="ended"):
        delivery.accept(Chunk("a", (1,), finish="stop", generated=1))
