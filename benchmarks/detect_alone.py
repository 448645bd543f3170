"""What TCP and health polls see of a fault when nobody acts on it: the same engines, without agent and recovery."""

import asyncio
import os
import random
import signal
import subprocess
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.detect_faults import FAULTS, Victim
from benchmarks.detect_scenes import engine_command
from benchmarks.detect_witnesses import PollWitness, TcpWitness
from benchmarks.processes import until
from benchmarks.report import spread
from cli.stack import free_port
from recovery.config import NodeSettings

NAMES = ("child_killed", "engine_stopped_idle")
"""Faults whose engine the agent or the recovery ends before others have had their time to look."""
WATCH_S = 10.0
_ENGINES = 3
_START_S = 60.0


async def observe(name: str, rng: random.Random) -> dict[str, Any]:
    """Hit a few lone engines at once, watch each for 10 s, and return the figures."""
    with ExitStack() as exits:
        folder = Path(exits.enter_context(tempfile.TemporaryDirectory(prefix="unbroken-alone-")))
        engines = [_Lone(name, folder / f"{number}.log") for number in range(_ENGINES)]
        for engine in engines:
            exits.callback(engine.end)
        seen = await asyncio.gather(*(engine.hit(random.Random(rng.random())) for engine in engines))
    return {
        "engines": _ENGINES,
        "watched_s": WATCH_S,
        "tcp_ms": spread([tcp for tcp, _, _ in seen if tcp is not None]),
        "http_poll_ms": spread([poll for _, poll, _ in seen if poll is not None]),
        "http_polls_passed": sum(passed for _, _, passed in seen),
    }


class _Lone:
    """One engine on its own."""

    def __init__(self, name: str, log: Path) -> None:
        self._fault = FAULTS[name]
        self._port = free_port()
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                engine_command(self._fault.scene, self._port, NodeSettings()),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    async def hit(self, rng: random.Random) -> tuple[float | None, float | None, int]:
        """Strike; return ms to the end of a TCP connection and to the first failed poll, and the polls that passed."""
        url = f"http://127.0.0.1:{self._port}"
        poll = PollWitness(url)
        end = time.monotonic() + _START_S
        while not await poll.passes():
            await until(lambda: time.monotonic() < end, f"{url} serving")
            await asyncio.sleep(0.1)
        tcp = await TcpWitness.connect("127.0.0.1", self._port)
        try:
            pid = self._process.pid
            struck = await self._fault.strike(Victim("lone", 0, pid, pid, url, "127.0.0.1", self._port, None))
            await poll.watch(struck.at_ns / 1e9, rng, WATCH_S)
            await asyncio.sleep(max(0.0, struck.at_ns / 1e9 + WATCH_S - time.monotonic()))
            ended_ns = tcp.ended_ns
        finally:
            await tcp.close()

        def after(at_ns: int) -> float | None:
            return (at_ns - struck.at_ns) / 1e6 if at_ns else None

        return after(ended_ns), after(poll.failed_ns), poll.passed

    def end(self) -> None:
        """End it, with all its processes."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(10)
