"""Ending a process tree, on real processes."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from node import mark, processes
from node.mark import Mark
from node.processes import Identity
from node.reclaim import end_all, find
from node.state import Record
from tests.rigs.ports import free_port

LISTENS = "import socket; s = socket.create_server(('127.0.0.1', {port}))"
IGNORES_TERM = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)"
FORKS = (
    "import subprocess, sys; "
    "p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'], start_new_session={detached})"
)


@contextlib.contextmanager
def process(before: str = "pass", **env: str) -> Iterator["subprocess.Popen[bytes]"]:
    """Start a Python process in a session of its own that runs `before`, says so and sleeps."""
    child = subprocess.Popen(
        [sys.executable, "-c", f"{before}\nimport os, time\nos.write(1, b'x')\ntime.sleep(60)"],
        env={"PATH": os.environ["PATH"], **env},
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert child.stdout is not None
    try:
        with child.stdout:
            child.stdout.read(1)
        yield child
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait(10)


def record(child: "subprocess.Popen[bytes]", started: int | None = None) -> Record:
    """Return a record of a child, with its true start time or another."""
    identity = processes.identify(child.pid)
    assert identity is not None
    return Record(child.pid, identity.started if started is None else started, child.pid, 1, "")


def nothing(_mark: Mark) -> bool:
    """Want no marked process."""
    return False


async def test_a_recycled_pid_is_never_signalled() -> None:
    """Same pid, other start time: another process, which must not notice anything."""
    with process() as child:
        stranger = record(child, started=1)

        ended = await end_all(lambda: find(stranger, nothing), None, 0.1, 1.0)

        assert ended.pids == ended.left == ()
        assert not processes.send(stranger.identity, signal.SIGKILL)
        assert child.poll() is None


async def test_a_tree_is_ended_and_the_child_reaped() -> None:
    """The child, its group and its detached descendants are gone, and no zombie is left."""
    with process(FORKS.format(detached=True)) as child:
        target = record(child)
        tree = processes.tree(target.identity)
        assert len(tree) == 2

        ended = await end_all(lambda: find(target, nothing), child, 1.0, 5.0)

        assert (set(ended.pids), ended.left) == ({one.pid for one in tree}, ())
        assert not any(processes.alive(one) for one in tree)
        assert processes.read(child.pid) is None


async def test_what_ignores_term_is_killed_after_the_grace() -> None:
    """TERM is a courtesy only."""
    with process(IGNORES_TERM) as child:
        target = record(child)

        await end_all(lambda: find(target, nothing), child, 0.2, 5.0)

        assert child.returncode == -signal.SIGKILL


async def test_a_stopped_process_is_killed_without_waiting_for_its_grace() -> None:
    """It would ignore TERM; a grace longer than the test's time limit shows that none is given."""
    with process() as child:
        target = record(child)
        os.kill(child.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, child.pid, os.WSTOPPED)  # noqa: ASYNC222 - a stop takes microseconds

        await end_all(lambda: find(target, nothing), child, 300.0, 310.0)

        assert child.returncode == -signal.SIGKILL


async def test_a_marked_orphan_is_ended_although_nothing_is_recorded() -> None:
    """The mark is inherited: it finds what the record does not know."""
    ours = Mark("a", 1, f"test-{os.getpid()}")
    with process(**{mark.VARIABLE: str(ours)}) as child:
        ended = await end_all(lambda: find(None, lambda one: one == ours), child, 1.0, 5.0)

        assert (ended.pids, child.poll()) == ((child.pid,), -signal.SIGTERM)


async def test_what_does_not_die_is_named() -> None:
    """Nothing is claimed to be gone that is not."""
    with process() as child:
        identity = Identity(child.pid, 1)  # the signal never reaches it, as with one stuck in the kernel

        ended = await end_all(lambda: {identity}, None, 0.0, 0.3)

        assert (ended.pids, ended.left) == ((), (child.pid,))
        assert child.poll() is None


@pytest.mark.parametrize("name", ["plain", "with space", "with) bracket (1"])
def test_a_process_name_does_not_confuse_the_reader(tmp_path: Path, name: str) -> None:
    """/proc/PID/stat holds the name unescaped."""
    program = tmp_path / name[:15]
    program.symlink_to("/bin/sleep")
    child = subprocess.Popen([str(program), "60"])
    try:
        stat = processes.read(child.pid)
        assert stat is not None
        assert (stat.parent, stat.living) == (os.getpid(), True)
    finally:
        child.kill()
        child.wait(10)


async def test_a_port_belongs_to_the_process_that_listens_on_it() -> None:
    """A stranger on the engine's port must not be taken for the engine."""
    port = free_port()
    with process(LISTENS.format(port=port)) as owner, process() as other:
        assert processes.listens(record(owner).identity, port)
        assert not processes.listens(record(other).identity, port)
        assert not processes.listens(record(owner).identity, free_port())
