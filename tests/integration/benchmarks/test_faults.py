"""The faults and witnesses of the detection measurement, on real processes and sockets."""

import asyncio
import random
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from benchmarks.detect_faults import FAULTS, Victim
from benchmarks.detect_witnesses import PollWitness, TcpWitness
from benchmarks.processes import cpu_s, family, resident_bytes, state, until
from cli.faults import FaultFailed

_SLEEP = "print(flush=True); import time; time.sleep(60)"
_BALLAST = (
    "from benchmarks.detect_ballast import hold; held = hold(64 * 1024**2); print(flush=True); "
    "import time; time.sleep(60)"
)


def _running(script: str) -> Iterator["subprocess.Popen[bytes]"]:
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


@pytest.fixture
def sleeper() -> Iterator["subprocess.Popen[bytes]"]:
    """A process to hurt."""
    yield from _running(_SLEEP)


@pytest.fixture
def heavy() -> Iterator["subprocess.Popen[bytes]"]:
    """A process with 64 MB of ballast."""
    yield from _running(_BALLAST)


def _victim(pid: int) -> Victim:
    return Victim("a", 1, pid, pid, "http://127.0.0.1:1", "127.0.0.1", 1, None)


async def test_a_stopped_process_is_proven_stopped_and_goes_on_afterwards(sleeper: "subprocess.Popen[bytes]") -> None:
    """The strike returns only once /proc says T; relief ends that."""
    fault = FAULTS["engine_stopped_idle"]
    struck = await fault.strike(_victim(sleeper.pid))
    assert state(sleeper.pid) == "T"
    assert "state T" in struck.proof
    fault.relieve(_victim(sleeper.pid))
    await until(lambda: state(sleeper.pid) == "S", "sleep")


async def test_an_engine_without_its_memory_is_not_killed(heavy: "subprocess.Popen[bytes]") -> None:
    """The figure is about engines with 2 GB resident; one with less would flatter it."""
    assert resident_bytes(heavy.pid) > 64 * 1024**2
    with pytest.raises(FaultFailed, match="holds only 0\\.0"):
        await FAULTS["engine_killed"].strike(_victim(heavy.pid))
    assert state(heavy.pid) != "Z"


async def test_the_innermost_process_is_killed_and_proven_dead() -> None:
    """Its parent lives on, as a front that never waits for its child does."""
    script = (
        "import subprocess, sys\n"
        f"child = subprocess.Popen([sys.executable, '-c', {_SLEEP!r}], stdout=subprocess.PIPE)\n"
        f"child.stdout.readline()\n{_SLEEP}"
    )
    for parent in _running(script):
        child = family(parent.pid)[1]
        struck = await FAULTS["child_killed"].strike(_victim(parent.pid))
        assert str(child) in struck.proof
        assert state(child) in "ZX"
        assert state(parent.pid) == "S"


async def test_a_busy_process_uses_its_cpu_time() -> None:
    """CPU seconds are read as the kernel counts them."""
    for busy in _running("print(flush=True)\nwhile True: pass"):
        before, began = cpu_s(busy.pid), time.monotonic()
        await until(lambda: cpu_s(busy.pid) > before + 0.2, "CPU use", 20)  # noqa: B023 - awaited within the loop
        assert cpu_s(busy.pid) - before <= time.monotonic() - began + 0.1


async def test_witnesses_see_a_server_go_silent_and_end() -> None:
    """A silent server fails the poll at its timeout and shows the held connection nothing, until it ends."""
    silent = asyncio.Event()
    clients: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        clients.append(writer)
        if await reader.readline() and not silent.is_set():
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    poll = PollWitness(f"http://127.0.0.1:{port}")
    await poll.check()
    tcp = await TcpWitness.connect("127.0.0.1", port)
    try:
        silent.set()
        await poll.watch(time.monotonic(), random.Random(1))
        assert poll.failed_ns
        assert not tcp.ended_ns
        for client in clients:
            client.close()
        await until(lambda: tcp.ended_ns > 0, "the connection's end")
    finally:
        await tcp.close()
        server.close()
        await server.wait_closed()
