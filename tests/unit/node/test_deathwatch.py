"""Which sensor sees a death, whose death counts, and what can be said of it; on real processes."""

import asyncio
import errno
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from node import deathwatch, processes
from node.deathwatch import DeathWatch
from node.processes import Identity
from tests.rigs.processes import Program, program, script

WAITS = "print('ready', flush=True); import sys; sys.stdin.readline()"
HAS_CHILD = (
    "import subprocess, sys; child = subprocess.Popen([sys.executable, '-c', 'import sys; "
    'print("ready", flush=True); sys.stdin.read()\'], stdin=subprocess.PIPE, stdout=subprocess.PIPE);'
    "child.stdout.readline();" + WAITS
)
LEAVES_ITS_THREAD = (
    "import ctypes, threading, time; threading.Thread(target=time.sleep, args=(60,)).start();"
    "print('ready', flush=True); ctypes.CDLL(None).pthread_exit(None)"
)
NEVER_S = 600.0


class Told:
    """What a watch has told."""

    def __init__(self) -> None:
        self.news: asyncio.Queue[str] = asyncio.Queue()

    async def next(self) -> str:
        """Wait for the next news."""
        return await asyncio.wait_for(self.news.get(), 10)


@asynccontextmanager
async def watching(
    running: Program, lifelines: Path | None = None, *, child: bool = False, covered: bool = True
) -> AsyncIterator[tuple[DeathWatch, Told]]:
    """Watch a program, its children included."""
    told = Told()
    watch = DeathWatch(running.identity, lifelines, running.child if child else None, told.news.put_nowait)
    try:
        if covered:
            watch.cover([running.identity, *running.children()])
        yield watch, told
    finally:
        await watch.close()


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """However young a process is, its end counts."""
    monkeypatch.setattr(deathwatch, "_SETTLED_S", 0.0)


@pytest.fixture
def no_polling(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process table is not looked at."""
    monkeypatch.setattr(deathwatch, "_POLL_S", NEVER_S)


@pytest.fixture
def no_pidfd(monkeypatch: pytest.MonkeyPatch) -> None:
    """No pidfd can be had."""

    def refuse(_pid: int) -> int:
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr(os, "pidfd_open", refuse)


@pytest.mark.usefixtures("no_polling", "no_pidfd")
async def test_the_robust_mutex_alone_tells_of_a_kill(tmp_path: Path) -> None:
    """Held by every Python process of the engine, which knows nothing of it."""
    with script(WAITS, tmp_path) as engine:
        async with watching(engine, tmp_path) as (_, told):
            engine.child.kill()

            assert await told.next() == f"robust mutex: owner died; pid {engine.pid}"


@pytest.mark.usefixtures("no_polling", "no_pidfd", "settled")
async def test_the_robust_mutex_of_a_child_tells_of_its_kill(tmp_path: Path) -> None:
    """Each process holds its own: robust lists are not inherited."""
    with script(HAS_CHILD, tmp_path) as engine:
        async with watching(engine, tmp_path) as (_, told):
            child = engine.children()[0]
            os.kill(child.pid, signal.SIGKILL)

            evidence = await told.next()

            assert evidence.startswith(f"robust mutex: owner died; pid {child.pid} (python")
            assert evidence.endswith(f"of the engine with pid {engine.pid}")


@pytest.mark.usefixtures("no_pidfd")
async def test_the_process_table_alone_tells_of_a_program_that_holds_no_lifeline(tmp_path: Path) -> None:
    """An engine in any language; its zombie, which nobody has waited for, counts as dead."""
    with program("/bin/sleep", "60", lifelines=tmp_path) as engine:
        async with watching(engine, tmp_path) as (_, told):
            engine.child.kill()

            assert (await told.next()).startswith("process table: ")


@pytest.mark.usefixtures("no_polling")
async def test_the_pidfd_alone_tells_and_knows_the_signal() -> None:
    """The child is reaped, so that its exit can be named."""
    with program("/bin/sleep", "60") as engine:
        async with watching(engine, child=True) as (_, told):
            engine.child.kill()

            assert await told.next() == f"pidfd: process ended; pid {engine.pid} signal 9 (SIGKILL)"


@pytest.mark.usefixtures("no_polling")
async def test_an_exit_code_is_named() -> None:
    """An engine that leaves by itself says how."""
    with script(WAITS + "; sys.exit(3)") as engine:
        async with watching(engine, child=True) as (_, told):
            engine.tell()

            assert (await told.next()).endswith("exit code 3")


async def test_one_death_is_told_once_whatever_follows(tmp_path: Path) -> None:
    """Main process and child, three sensors each: one news."""
    with script(HAS_CHILD, tmp_path) as engine:
        async with watching(engine, tmp_path) as (watch, told):
            child = engine.children()[0]
            engine.child.kill()
            await told.next()
            os.kill(child.pid, signal.SIGKILL)
            await asyncio.to_thread(engine.child.wait, 10)
            await until(lambda: not watch.members)

            assert told.news.empty()


@pytest.mark.usefixtures("settled")
async def test_the_death_of_a_child_is_the_engines_although_its_parent_lives() -> None:
    """The parent does not wait for it: state Z, as behind a green /health."""
    with script(HAS_CHILD) as engine:
        async with watching(engine) as (_, told):
            child = engine.children()[0]
            os.kill(child.pid, signal.SIGKILL)

            assert f"pid {child.pid}" in await told.next()
            assert processes.alive(engine.identity)


async def test_a_passing_helper_at_the_moment_of_readiness_is_no_death(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends before it has lived for long."""
    monkeypatch.setattr(deathwatch, "_SETTLED_S", NEVER_S)
    with script(HAS_CHILD) as engine:
        async with watching(engine) as (watch, told):
            child = engine.children()[0]
            os.kill(child.pid, signal.SIGKILL)
            await until(lambda: watch.members == [engine.identity])

            assert told.news.empty()
            engine.child.kill()
            assert f"pid {engine.pid}" in await told.next()


@pytest.mark.usefixtures("settled")
async def test_processes_that_come_later_come_and_go() -> None:
    """Compilers, nvidia-smi, tokenizers' pools."""
    code = f"import subprocess; {WAITS}; subprocess.run(['/bin/true']); print('ran', flush=True); sys.stdin.readline()"
    with script(code) as engine:
        async with watching(engine) as (_, told):
            engine.tell()
            assert await asyncio.to_thread(engine.line) == "ran"
            await asyncio.sleep(0.05)  # several looks

            assert told.news.empty()


async def test_a_first_thread_that_leaves_its_others_behind_is_no_death() -> None:
    """Its state is Z then, and the process lives; a kill of the rest is seen all the same."""
    with script(LEAVES_ITS_THREAD) as engine:
        async with watching(engine) as (_, told):

            def left() -> bool:
                stat = processes.read(engine.pid)
                return stat is not None and stat.state == "Z"

            await until(left)
            await asyncio.sleep(0.05)
            assert told.news.empty()

            engine.child.kill()
            assert f"pid {engine.pid}" in await told.next()


async def test_a_program_that_calls_another_by_exec_lets_go_of_its_lifeline_and_lives(tmp_path: Path) -> None:
    """The mutex is only a reason to look."""
    with script(f"import os; {WAITS}; os.execv('/bin/sleep', ['sleep', '60'])", tmp_path) as engine:
        async with watching(engine, tmp_path) as (_, told):
            engine.tell()

            def changed() -> bool:
                stat = processes.read(engine.pid)
                return stat is not None and stat.name == "sleep"

            await until(changed)
            await asyncio.sleep(0.05)
            assert told.news.empty()


async def test_a_stopped_process_is_halted_not_dead() -> None:
    """SIGSTOP is a hang; the report says so."""
    with program("/bin/sleep", "60") as engine:
        async with watching(engine) as (watch, told):
            os.kill(engine.pid, signal.SIGSTOP)
            await until(lambda: watch.halted)
            os.kill(engine.pid, signal.SIGCONT)
            await until(lambda: not watch.halted)

            assert told.news.empty()


@pytest.mark.parametrize("started", [0, 1])
async def test_a_process_that_is_not_the_recorded_one_counts_as_dead(started: int) -> None:
    """A recycled pid must not keep a dead engine alive."""
    told = Told()
    with program("/bin/sleep", "60") as stranger:
        watch = DeathWatch(Identity(stranger.pid, started), None, None, told.news.put_nowait)
        try:
            assert "ended" in await told.next()
        finally:
            await watch.close()


async def test_an_agent_without_descriptors_takes_no_engine_for_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trouble of the watcher's own is no evidence."""
    told = Told()

    def refuse(*_args: object) -> int:
        raise OSError(errno.EMFILE, "too many open files")

    with program("/bin/sleep", "60") as engine:
        monkeypatch.setattr(os, "open", refuse)
        watch = DeathWatch(engine.identity, None, None, told.news.put_nowait)
        monkeypatch.undo()
        try:
            await asyncio.sleep(0.02)
            assert told.news.empty()
        finally:
            await watch.close()


async def test_a_closed_watch_is_silent(tmp_path: Path) -> None:
    """We are ending the engine ourselves: no news."""
    with script(WAITS, tmp_path) as engine:
        async with watching(engine, tmp_path) as (watch, told):
            await watch.close()
            engine.child.kill()
            await asyncio.to_thread(engine.child.wait, 10)
            await asyncio.sleep(0.02)

            assert told.news.empty()


@pytest.mark.parametrize(
    ("state", "flags", "pending", "ends"),
    [
        ("S", 0x400000, 0, False),
        ("T", 0, 0, False),
        ("S", 0, 1 << 14, False),  # TERM may be handled
        ("R", 0x400004, 0, True),
        ("D", 0x200, 0, True),
        ("D", 0, 1 << 8, True),  # KILL, however long it is in coming
        ("Z", 0, 0, True),
    ],
)
def test_a_thread_that_will_never_run_again_is_known_by_flags_state_or_a_kill_on_its_way(
    state: str, flags: int, pending: int, ends: bool
) -> None:
    """Fields 3, 9 and 31 of /proc/PID/stat."""
    fields = [state, "1", "7", "7", "0", "-1", str(flags)] + ["0"] * 12 + ["99"] + ["0"] * 8 + [str(pending), "0"]

    stat = processes.parse(f"7 (a) b (c) {' '.join(fields)}\n".encode())

    assert (stat.name, stat.started, stat.ending) == ("a) b (c", 99, ends)


async def until(question: Callable[[], bool]) -> None:
    """Poll until the answer is yes, for 10 s at most."""
    async with asyncio.timeout(10):
        while not question():  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.005)
