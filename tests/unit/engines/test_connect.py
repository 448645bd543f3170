"""One function from a kind to its adapter."""

import pytest

from engines import connect
from engines.llamacpp import LlamaCpp, open_session


async def test_the_kind_chooses_the_adapter() -> None:
    """A trailing slash in the address does no harm."""
    async with open_session() as session:
        engine = connect("llamacpp", "http://127.0.0.1:1/", session)
        assert isinstance(engine, LlamaCpp)
        assert engine.url == "http://127.0.0.1:1"


async def test_an_unknown_kind_is_refused_with_the_known_ones() -> None:
    """The message names the field and what it may hold."""
    async with open_session() as session:
        with pytest.raises(ValueError, match=r"kind: unknown engine kind 'x'; known kinds: llamacpp"):
            connect("x", "http://127.0.0.1:1", session)
