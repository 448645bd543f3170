"""Keys and tokens: who may call inference, who may operate, and who may command an agent."""

import hashlib
import hmac
import secrets
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import orjson

from recovery.errors import SettingsError


class Scope(StrEnum):
    """What a key allows."""

    INFERENCE = "inference"
    OPERATOR = "operator"


@dataclass(frozen=True, slots=True)
class Key:
    """A known API key: its name and scopes, never the key itself."""

    name: str
    digest: str
    scopes: frozenset[Scope]


class Keys:
    """The keys a gateway accepts. Without a keys file everybody may do everything (`open_to_all`)."""

    def __init__(self, keys: list[Key] | None) -> None:
        self.open_to_all = keys is None
        self._by_digest = {key.digest: key for key in keys or []}

    @classmethod
    def from_file(cls, path: Path | None) -> "Keys":
        """Read a JSON list of {name, sha256, scopes}. Raises SettingsError naming the entry that is wrong."""
        if path is None:
            return cls(None)
        try:
            entries = orjson.loads(path.read_bytes())
        except (OSError, orjson.JSONDecodeError) as error:
            raise SettingsError(f"auth.keys_file {path}: {error}") from error
        if not isinstance(entries, list):
            raise SettingsError(f"auth.keys_file {path}: it must hold a list of {{name, sha256, scopes}}")
        keys = []
        for number, entry in enumerate(entries):
            try:
                scopes = frozenset(Scope(scope) for scope in entry["scopes"])
                keys.append(Key(entry["name"], entry["sha256"], scopes))
            except (KeyError, TypeError, ValueError) as error:
                raise SettingsError(f"auth.keys_file {path}: entry {number}: {error!r}") from error
        return cls(keys)

    def find(self, presented: str) -> Key | None:
        """Return the key presented, or None. Looks up a digest, so no timing tells a key apart."""
        return self._by_digest.get(digest(presented))


def digest(key: str) -> str:
    """Return what a keys file holds in place of a key."""
    return hashlib.sha256(key.encode()).hexdigest()


def new_key() -> str:
    """Return a fresh random key."""
    return "ub-" + secrets.token_urlsafe(24)


def read_token(path: Path | None) -> str | None:
    """Read the agents' shared token. Raises SettingsError when the file is missing or empty."""
    if path is None:
        return None
    try:
        token = path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise SettingsError(f"auth.agent_token_file {path}: {error}") from error
    if not token:
        raise SettingsError(f"auth.agent_token_file {path}: the file is empty")
    return token


def same_token(presented: str, expected: str) -> bool:
    """Compare two tokens in constant time."""
    return hmac.compare_digest(presented.encode(), expected.encode())
