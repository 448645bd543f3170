"""The operator's own command line for an engine."""

import pytest

from node import command
from recovery.errors import SettingsError

VALUES = {"host": "::1", "port": "8001", "model": "/m.gguf", "alias": "m", "slots": "4", "context": "2048"}


def test_placeholders_are_filled_in() -> None:
    """Also in mid-word."""
    filled = command.fill(["server", "--bind={host}:{port}", "-m", "{model}", "-np", "{slots}"], VALUES)

    assert filled == ["server", "--bind=::1:8001", "-m", "/m.gguf", "-np", "4"]


def test_other_braces_are_the_engines_own() -> None:
    """JSON is passed as it is."""
    order = ["serve", "--config", '{"level": 0, "a": {}}']

    assert command.fill(order, VALUES) == order


def test_an_unknown_placeholder_is_refused_with_the_setting_and_the_known_ones() -> None:
    """A typing error would reach the engine otherwise."""
    with pytest.raises(SettingsError, match=r"node\.command: \{prot\}.*\{port\}"):
        command.check(["server", "--port", "{prot}"])


def test_an_empty_program_is_refused() -> None:
    """No command at all is the adapter's own."""
    with pytest.raises(SettingsError, match=r"node\.command"):
        command.check([""])
    command.check([])


def test_a_model_file_is_wanted_only_where_it_is_named() -> None:
    """Other engines bring theirs."""
    assert command.wants(["x", "--model={model}"], "model")
    assert not command.wants(["x", "--model=y"], "model")
