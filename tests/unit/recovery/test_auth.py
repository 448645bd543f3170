"""Keys and tokens: found by digest, refused with the place of the mistake."""

from pathlib import Path

import orjson
import pytest

from recovery import auth
from recovery.auth import Keys, Scope
from recovery.errors import SettingsError


def keys_file(tmp_path: Path, entries: object) -> Path:
    """Write a keys file."""
    path = tmp_path / "keys.json"
    path.write_bytes(orjson.dumps(entries))
    return path


def test_a_key_is_found_by_itself_and_carries_its_scopes(tmp_path: Path) -> None:
    """The file holds digests only."""
    key = auth.new_key()
    path = keys_file(tmp_path, [{"name": "ann", "sha256": auth.digest(key), "scopes": ["operator"]}])
    assert key not in path.read_text()
    keys = Keys.from_file(path)
    found = keys.find(key)
    assert found is not None
    assert (found.name, found.scopes) == ("ann", frozenset({Scope.OPERATOR}))
    assert keys.find(key + "x") is None
    assert keys.find("") is None
    assert not keys.open_to_all


def test_no_keys_file_means_open_and_an_empty_one_means_closed(tmp_path: Path) -> None:
    """An installation that lost its keys must not open up."""
    assert Keys.from_file(None).open_to_all
    assert not Keys.from_file(keys_file(tmp_path, [])).open_to_all


@pytest.mark.parametrize(
    "entry", [{"name": "ann"}, {"name": "ann", "sha256": "0", "scopes": ["root"]}, "ann", {"sha256": "0"}]
)
def test_a_wrong_entry_is_refused_with_its_number(tmp_path: Path, entry: object) -> None:
    """And with the file's name."""
    good = {"name": "bob", "sha256": "0", "scopes": []}
    with pytest.raises(SettingsError, match=r"keys\.json: entry 1"):
        Keys.from_file(keys_file(tmp_path, [good, entry]))


def test_a_keys_file_that_is_missing_is_refused(tmp_path: Path) -> None:
    """The setting is named."""
    with pytest.raises(SettingsError, match=r"auth\.keys_file"):
        Keys.from_file(tmp_path / "none.json")


def test_a_keys_file_that_holds_no_list_is_refused(tmp_path: Path) -> None:
    """The setting is named."""
    with pytest.raises(SettingsError, match=r"auth\.keys_file"):
        Keys.from_file(keys_file(tmp_path, 7))


def test_the_agent_token_is_read_without_its_newline_and_never_empty(tmp_path: Path) -> None:
    """An empty file would let everybody in."""
    path = tmp_path / "token"
    path.write_text("secret\n")
    assert auth.read_token(path) == "secret"
    assert auth.read_token(None) is None
    path.write_text("\n")
    with pytest.raises(SettingsError, match="empty"):
        auth.read_token(path)
    with pytest.raises(SettingsError, match=r"auth\.agent_token_file"):
        auth.read_token(tmp_path / "none")


def test_tokens_are_equal_only_to_themselves() -> None:
    """Whatever their alphabet."""
    assert auth.same_token("sécret", "sécret")
    assert not auth.same_token("secret", "sécret")
    assert not auth.same_token("", "secret")
