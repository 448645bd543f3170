"""The epoch mark in an engine's environment."""

import os
import subprocess
import sys

import pytest

from node import mark
from node.mark import Mark


@pytest.mark.parametrize("written", [Mark("a", 7, "abc"), Mark("node-1.x", 0, "f" * 32)])
def test_a_mark_reads_back_as_written(written: Mark) -> None:
    """What the launcher writes is what the reclaim reads."""
    assert mark.parse(str(written)) == written


@pytest.mark.parametrize("text", ["", "a", "a:7", "a:x:h", "a:-1:h", ":7:h", "a:7:", "a:²:h", "a: 7:h"])
def test_what_is_no_mark_is_none(text: str) -> None:
    """Anything else in that variable is somebody else's."""
    assert mark.parse(text) is None


def test_only_living_processes_with_the_wanted_mark_are_found() -> None:
    """Found by environment, whoever the parent is; a zombie is not found."""
    wanted = Mark("a", 3, f"test-{os.getpid()}")
    other = Mark("b", 3, f"test-{os.getpid()}")
    children = [sleeper({mark.VARIABLE: str(wanted)}), sleeper({mark.VARIABLE: str(other)}), sleeper({})]
    try:
        found = {identity.pid for identity in mark.find(lambda one: one == wanted)}
        assert found == {children[0].pid}

        children[0].kill()
        os.waitid(os.P_PID, children[0].pid, os.WEXITED | os.WNOWAIT)  # dead, not reaped
        assert not list(mark.find(lambda one: one == wanted))
    finally:
        for child in children:
            child.kill()
            child.wait(10)


def sleeper(env: dict[str, str]) -> "subprocess.Popen[bytes]":
    """Start a process that does nothing, and wait until its environment is its own."""
    child = subprocess.Popen(
        [sys.executable, "-c", "import sys, time; sys.stdout.write('x'); sys.stdout.flush(); time.sleep(60)"],
        env={"PATH": os.environ["PATH"], **env},
        stdout=subprocess.PIPE,
    )
    assert child.stdout is not None
    with child.stdout:
        child.stdout.read(1)
    return child
