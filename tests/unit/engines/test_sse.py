"""Events out of any cut of the byte stream."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines import sse

STREAM = (
    ': a comment\n\ndata: {"a":1}\n\nevent: error\r\ndata: {"b":\r\ndata: 2}\r\n\r\n'
    ': ping\ndata: {"text":"😀 naïve"}\n\n\n\ndata:tight\n\nid: 7\nretry: 5\n\nerror: {"code":500}\n\ndata: left'
).encode()
EVENTS = [
    sse.Event("", b'{"a":1}'),
    sse.Event("error", b'{"b":\n2}'),
    sse.Event("", '{"text":"😀 naïve"}'.encode()),
    sse.Event("", b"tight"),
    sse.Event("error", b'{"code":500}'),
]


def feed_all(stream: bytes, cuts: list[int]) -> list[sse.Event]:
    """Feed ``stream`` cut at ``cuts``."""
    splitter = sse.Splitter()
    edges = [0, *sorted(cuts), len(stream)]
    return [event for start, end in itertools.pairwise(edges) for event in splitter.feed(stream[start:end])]


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_any_cut_of_the_stream_gives_the_same_events(cuts: list[int]) -> None:
    """Reads end anywhere: inside a character, between CR and LF, before a blank line."""
    assert feed_all(STREAM, cuts) == EVENTS


def test_each_byte_alone_gives_the_same_events() -> None:
    """The finest cut there is."""
    assert feed_all(STREAM, list(range(len(STREAM)))) == EVENTS


def test_an_event_without_its_blank_line_is_not_given_out() -> None:
    """Half an event may be half a lie."""
    # Given
    splitter = sse.Splitter()
    # When
    events = splitter.feed(b'data: {"a":1}\n')
    # Then
    assert events == []
    assert splitter.unfinished


def test_an_event_that_never_ends_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A body that is no event stream must not fill the memory."""
    monkeypatch.setattr(sse, "MAX_EVENT", 100)
    splitter = sse.Splitter()
    splitter.feed(b"x" * 100)
    with pytest.raises(ValueError, match="longer than 100 bytes"):
        splitter.feed(b"x")
