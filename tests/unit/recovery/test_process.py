"""How a process begins and ends."""

import asyncio
import os
import signal

import pytest

from recovery import process
from recovery.config import Settings
from recovery.errors import LeaseHeld

pytestmark = pytest.mark.usefixtures("logging_as_it_was")


def test_a_signal_becomes_the_stop_event() -> None:
    """TERM asks for an orderly end; the process returns its own code."""

    async def run(_settings: Settings, stop: asyncio.Event) -> int:
        os.kill(os.getpid(), signal.SIGTERM)
        async with asyncio.timeout(5):
            await stop.wait()
        return 7

    assert process.main("test", run) == 7


def test_what_unbroken_refuses_is_one_line_and_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    """The supervisor takes code 2 as: starting again will not help."""

    async def run(_settings: Settings, _stop: asyncio.Event) -> int:
        raise LeaseHeld("node a: its lease is held by agent x")

    assert process.main("agent", run) == 2
    assert capsys.readouterr().err.splitlines()[-1] == "unbroken agent: node a: its lease is held by agent x"


def test_wrong_settings_are_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Before anything runs."""
    monkeypatch.setenv("UNBROKEN_GATEWAY__PORT", "70000")

    async def run(_settings: Settings, _stop: asyncio.Event) -> int:
        raise AssertionError("it ran")

    assert process.main("gateway", run) == 2
    assert "gateway.port" in capsys.readouterr().err
