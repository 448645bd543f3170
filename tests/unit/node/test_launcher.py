"""The engine's log: bounded, quotable, and appended to by an engine that knows nothing of it."""

import os
from pathlib import Path

from node.launcher import EngineLog


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
