"""Which sensor sees a death, and what it can say of it; on real processes."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from engines import lifeline
from node import processes
from node.deathwatch import DeathWatch
from node.processes import Identity

HOLDS = "import sys, pathlib; from engines import lifeline; lifeline.hold(pathlib.Path(sys.argv[1]));"
WAITS = "sys.stdout.write('x'); sys.stdout.flush(); sys.stdin.read()"


class Watched:
    """A process and what its watch has told."""

    def __init__(self, code: str, *args: str) -> None:
        self.child = subprocess.Popen(
            [sys.executable, "-c", code, *args], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self.child.stdout is not None
        self.child.stdout.read(1)
        self.told: asyncio.Queue[str] = asyncio.Queue()

    @property
    def identity(self) -> Identity:
        """The process."""
        found = processes.identify(self.child.pid)
        assert found is not None
        return found

    def close(self) -> None:
        """End it."""
        self.child.kill()
        self.child.communicate(timeout=10)


async def test_the_robust_mutex_tells_of_a_kill(tmp_path: Path) -> None:
    """Told once, whichever sensor comes second."""
    path = tmp_path / "line"
    lifeline.create(path)
    watched = Watched(HOLDS + WAITS, str(path))
    watch = DeathWatch(watched.identity, path, None, watched.told.put_nowait)
    try:
        watched.child.kill()

        evidence = await asyncio.wait_for(watched.told.get(), 5)
        await asyncio.to_thread(watched.child.wait, 5)

        assert f"pid {watched.child.pid}" in evidence
        assert evidence.startswith(("robust mutex: owner died", "pidfd: process ended"))
        assert watched.told.empty()
    finally:
        await watch.close()
        watched.close()


async def test_without_a_lifeline_the_pidfd_tells_and_knows_the_signal() -> None:
    """The child is reaped, so that its exit can be named."""
    watched = Watched("import sys;" + WAITS)
    watch = DeathWatch(watched.identity, None, watched.child, watched.told.put_nowait)
    try:
        watched.child.kill()

        evidence = await asyncio.wait_for(watched.told.get(), 5)

        assert evidence == f"pidfd: process ended; pid {watched.child.pid} signal 9 (SIGKILL)"
    finally:
        await watch.close()
        watched.close()


async def test_an_exit_code_is_named() -> None:
    """An engine that leaves by itself says how."""
    watched = Watched("import sys;" + WAITS + "; sys.exit(3)")
    watch = DeathWatch(watched.identity, None, watched.child, watched.told.put_nowait)
    try:
        assert watched.child.stdin is not None
        watched.child.stdin.close()
        watched.child.stdin = None

        assert (await asyncio.wait_for(watched.told.get(), 5)).endswith("exit code 3")
    finally:
        await watch.close()
        watched.close()


@pytest.mark.parametrize("started", [0, 1])
async def test_a_process_that_is_not_the_recorded_one_counts_as_dead(started: int) -> None:
    """A recycled pid must not keep a dead engine alive."""
    watched = Watched("import sys;" + WAITS)
    watch = DeathWatch(Identity(watched.child.pid, started), None, None, watched.told.put_nowait)
    try:
        assert "ended" in await asyncio.wait_for(watched.told.get(), 5)
    finally:
        await watch.close()
        watched.close()


async def test_a_closed_watch_is_silent(tmp_path: Path) -> None:
    """We are ending the engine ourselves: no news."""
    path = tmp_path / "line"
    lifeline.create(path)
    watched = Watched(HOLDS + WAITS, str(path))
    watch = DeathWatch(watched.identity, path, None, watched.told.put_nowait)
    await watch.close()

    watched.close()
    await asyncio.sleep(0)

    assert watched.told.empty()
