"""How an engine is started, and its log: bounded, quotable, appended to by an engine that knows nothing of it."""

import os
import subprocess
from pathlib import Path

import pytest

from node.launcher import EngineLog, Launcher
from node.state import NodeDir, Record
from recovery.config import NodeSettings
from tests.rigs.processes import HOOK


def test_the_tail_holds_the_last_lines_of_this_run_only(tmp_path: Path) -> None:
    """An earlier run's words would name the wrong reason."""
    log = EngineLog(tmp_path)
    say(log.begin(), "earlier failure")
    say(log.begin(), "\n".join(f"line {number}" for number in range(100)))

    assert log.tail(3) == "line 97\nline 98\nline 99"
    assert (tmp_path / "engine.log.1").read_text() == "earlier failure"


def test_a_log_grown_too_big_keeps_its_end_and_goes_on(tmp_path: Path) -> None:
    """The engine's descriptor stays open over the cut."""
    log = EngineLog(tmp_path)
    output = log.begin()
    try:
        os.write(output, b"x" * 5_000_000 + b"\nbefore\n")
        log.trim()
        os.write(output, b"after\n")
    finally:
        os.close(output)

    assert log.path.stat().st_size < 100_000
    assert log.tail(2) == "before\nafter"


def test_an_engine_that_said_nothing_has_an_empty_tail(tmp_path: Path) -> None:
    """Nor is a missing file an error."""
    assert EngineLog(tmp_path).tail() == ""


def say(output: int, text: str) -> None:
    """Write as an engine would."""
    os.write(output, text.encode())
    os.close(output)


async def test_the_engine_gets_mark_lifelines_and_hook_and_none_of_our_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever command starts it; the path it had is kept behind ours."""
    monkeypatch.setenv("UNBROKEN_REDIS__URL", "redis://:secret@host")
    monkeypatch.setenv("PYTHONPATH", "/theirs")
    home = NodeDir.open(tmp_path, "a")
    launcher = Launcher(NodeSettings(id="a", command=["/bin/sh", "-c", "env; echo {host} {port}"], engine_port=7), home)
    try:
        launched = await launcher.launch(3)
        assert launched.child is not None
        launched.child.wait(10)

        said = launcher.log.tail(200).splitlines()

        env = dict(line.partition("=")[::2] for line in said if "=" in line)
        assert said[-1] == "127.0.0.1 7"
        assert env["UNBROKEN_EPOCH"] == f"a:3:{home.holder}"
        assert env["UNBROKEN_LIFELINES"] == launched.record.lifeline
        assert env["PYTHONPATH"].split(os.pathsep) == [str(HOOK), "/theirs"]
        assert "UNBROKEN_REDIS__URL" not in env
    finally:
        launcher.sweep()
        home.close()
    assert not Path(launched.record.lifeline).exists()


def test_lifelines_of_helpers_that_have_ended_are_tidied_away(tmp_path: Path) -> None:
    """An engine that starts one a second must not fill the memory; the living keep theirs."""
    home = NodeDir.open(tmp_path, "a")
    folder = tmp_path / "lifelines"
    folder.mkdir()
    ended = subprocess.Popen(["/bin/true"])
    ended.wait(10)
    for pid in (os.getpid(), ended.pid):
        (folder / str(pid)).touch()
    home.record(Record(1, 1, 1, 1, "", lifeline=str(folder)))
    try:
        Launcher(NodeSettings(id="a"), home).tidy()
    finally:
        home.close()

    assert [path.name for path in folder.iterdir()] == [str(os.getpid())]
