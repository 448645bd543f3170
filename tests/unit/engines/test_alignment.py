"""Ids kept only where their text is known to end."""

from hypothesis import given
from hypothesis import strategies as st

from engines.alignment import MAX_TRIES, Alignment

VOCABULARY: dict[int, bytes] = {
    1: b"a",
    2: b" b",
    3: "é".encode(),
    4: b"\xf0\x9f",
    5: b"\x98",
    6: b"\x80",
    7: b"\xe2\x82",
    8: b"\xac",
    9: b"five",
}
TOKENS = st.lists(st.sampled_from([(1,), (2,), (3,), (4, 5, 6), (7, 8), (9,)]), max_size=20)


def as_llamacpp_streams(ids: list[int]) -> list[tuple[str, list[int], int]]:
    """Return the events llama.cpp sends for ``ids``: text at whole characters, the last id only."""
    events, held = [], b""
    for number, token in enumerate(ids, 1):
        held += VOCABULARY[token]
        try:
            events.append((held.decode(), [token], number))
        except UnicodeDecodeError:
            continue
        held = b""
    return events


def retokenised(text: str) -> list[int]:
    """Tokenise by the only way this vocabulary has: longest piece first."""
    rest, ids = text.encode(), []
    while rest:
        token = max((t for t, piece in VOCABULARY.items() if rest.startswith(piece)), key=lambda t: len(VOCABULARY[t]))
        ids.append(token)
        rest = rest[len(VOCABULARY[token]) :]
    return ids


@given(TOKENS)
def test_withheld_ids_are_recovered_by_tokenising_the_text_anew(characters: list[tuple[int, ...]]) -> None:
    """Every id comes back, in order, at the boundary of its character."""
    # Given
    ids = [token for character in characters for token in character]
    alignment, collected = Alignment(strict=False), []
    # When
    for text, sent, predicted in as_llamacpp_streams(ids):
        if alignment.feed(text, sent, predicted):
            collected += sent
        else:
            assert alignment.run is not None
            found = alignment.accept_ids(retokenised(alignment.run.text))
            assert found is not None
            collected += found
    # Then
    assert collected == ids


@given(TOKENS, st.integers(1, 9), st.data())
def test_a_wrong_tokenisation_is_never_accepted(
    characters: list[tuple[int, ...]], wrong: int, data: st.DataObject
) -> None:
    """Count and every id that was sent must agree."""
    ids = [4, 5, 6, *(token for character in characters for token in character)]
    alignment = Alignment(strict=False)
    text, sent, predicted = as_llamacpp_streams(ids)[0]
    alignment.feed(text, sent, predicted)
    # When the last id or the count differs
    other = data.draw(st.sampled_from([[4, 5, wrong], [5, 6], [1, 4, 5, 6], []]))
    # Then
    assert alignment.accept_ids(other) == (None if other != [4, 5, 6] else (4, 5, 6))


def test_a_later_chunk_settles_an_unsure_run_with_all_its_ids() -> None:
    """What could not be matched alone may be matched together with what follows."""
    # Given a character whose ids could not be found
    alignment = Alignment(strict=False)
    assert not alignment.feed("😀", [6], 3)
    assert alignment.accept_ids([1, 6]) is None
    alignment.failed()
    # When the next chunk comes
    assert not alignment.feed("a", [1], 4)
    # Then its ids cover the earlier text too, and the run is over
    assert alignment.accept_ids([4, 5, 6, 1]) == (4, 5, 6, 1)
    assert alignment.feed("a", [1], 5)


def test_ids_sent_while_a_stop_string_is_in_doubt_wait_for_their_text() -> None:
    """An id whose text is held back must not count as delivered."""
    alignment = Alignment(strict=True)
    assert not alignment.feed("", [2], 1)
    assert not alignment.feed(" ba", [1], 2)
    assert alignment.run is not None
    assert alignment.run.ids == (2, 1)
    assert alignment.accept_pieces([" b", "a"]) == (2, 1)


def test_a_token_cut_in_two_by_a_stop_string_is_not_accepted() -> None:
    """`five` stopped at `ive` delivers `f`: no id ends there."""
    alignment = Alignment(strict=True)
    assert not alignment.feed("f", [9], 1)
    assert alignment.accept_pieces(["five"]) is None
    assert alignment.accept_ids([1]) is None


def test_a_run_that_never_matches_is_given_up() -> None:
    """Trying for ever would cost a question per token."""
    alignment = Alignment(strict=False)
    for number in range(MAX_TRIES):
        alignment.feed("�", [6], 3 + number)
        alignment.failed()
    assert alignment.hopeless
    assert alignment.run is None
