"""Logs: one line each, and never in the way."""

import json
import os
import sys

import pytest
import structlog

from recovery import log
from recovery.config import LogSettings

pytestmark = pytest.mark.usefixtures("logging_as_it_was")


def test_each_line_carries_what_the_process_bound(capsys: pytest.CaptureFixture[str]) -> None:
    """JSON with node and process beside the event's own fields."""
    log.configure(LogSettings(format="json"), process="agent", node="a")
    structlog.get_logger().info("engine.started", epoch=7)
    line = json.loads(capsys.readouterr().err)
    assert (line["event"], line["process"], line["node"], line["epoch"]) == ("engine.started", "agent", "a", 7)


def test_a_log_nobody_reads_any_more_stops_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """A killed supervisor closes the pipe; the agent must still end its engine."""
    # Given standard error on a pipe that nobody reads
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w", buffering=1) as broken:
        monkeypatch.setattr(sys, "stderr", broken)
        with pytest.raises(BrokenPipeError):
            broken.write("proof that it is broken\n")
        # When something is logged
        log.configure(LogSettings(format="json"), process="agent")
        structlog.get_logger().info("agent.stopping")
        # Then nothing is raised
        monkeypatch.undo()
        os.dup2(os.open(os.devnull, os.O_WRONLY), broken.fileno())
