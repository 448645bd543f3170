"""The faults whose detection is measured: real signals and real cuts, each with the proof that it happened."""

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

from benchmarks.processes import children, ended, family, resident_bytes, state, until
from benchmarks.wire import Cut, Wire
from cli.faults import FaultFailed

Scene = Literal["plain", "ballast", "two_processes", "wires"]
_LEAST_RESIDENT = 2 * 10**9
_CONNECT_S = 0.25


@dataclass(frozen=True, slots=True)
class Victim:
    """The node a fault hits, as it was just before."""

    node: str
    epoch: int
    engine_pid: int
    agent_pid: int
    engine_url: str
    host: str
    port: int
    wire: Wire | None


@dataclass(frozen=True, slots=True)
class Struck:
    """Proof of a fault."""

    at_ns: int
    """time.monotonic_ns() just before the signal or cut."""
    wall_ms: float
    """The same moment, ms since 1970."""
    proof: str


@dataclass(frozen=True, slots=True)
class Fault:
    """How to strike, and how to let the node recover afterwards."""

    scene: Scene
    meaning: str
    strike: Callable[[Victim], Awaitable[Struck]]
    relieve: Callable[[Victim], None] = lambda _victim: None
    streams: int = 0
    """Requests that run while it strikes; the node with most of them is hit."""
    ends_engine: bool = False
    """Whether the fault itself closes the engine's port: else TCP's end after the verdict is the recovery's work."""
    overtaken: bool = False
    """Whether the agent ends what is left of the engine at once: then failed polls after the verdict are its work."""


async def _kill_engine(victim: Victim) -> Struck:
    resident = resident_bytes(victim.engine_pid)
    if resident < _LEAST_RESIDENT:
        raise FaultFailed(f"engine {victim.engine_pid} holds only {resident / 1e9:.2f} GB")
    at_ns, wall_ms, after_ms = await _kill(victim.engine_pid)
    return Struck(at_ns, wall_ms, f"{resident / 1e9:.2f} GB resident; dead in /proc after {after_ms:.0f} ms")


async def _kill_child(victim: Victim) -> Struck:
    below = [pid for pid in family(victim.engine_pid) if pid != victim.engine_pid]
    last = [pid for pid in below if not children(pid) and not ended(pid)]
    if not last:
        raise FaultFailed(f"engine {victim.engine_pid} has no child")
    at_ns, wall_ms, after_ms = await _kill(last[0])
    return Struck(at_ns, wall_ms, f"child {last[0]} of {victim.engine_pid} dead in /proc after {after_ms:.0f} ms")


async def _stop(which: Literal["engine", "agent"], victim: Victim) -> Struck:
    pid = _pid(which, victim)
    at_ns, wall_ms = _now()
    os.kill(pid, signal.SIGSTOP)
    await until(lambda: state(pid) == "T", f"{which} {pid} in state T")
    return Struck(at_ns, wall_ms, f"{which} {pid} is in state T")


def _go_on(which: Literal["engine", "agent"], victim: Victim) -> None:
    pid = _pid(which, victim)
    if state(pid) == "T":
        os.kill(pid, signal.SIGCONT)


async def _cut(how: Cut, victim: Victim) -> Struck:
    wire = _wire(victim)
    if not await _reaches(victim):
        raise FaultFailed(f"{victim.host}:{victim.port} could not be reached before the cut")
    at_ns, wall_ms = _now()
    wire.cut(how)
    if await _reaches(victim):
        raise FaultFailed(f"{victim.host}:{victim.port} is reached over a link that is {how}")
    return Struck(at_ns, wall_ms, f"connections to {victim.host}:{victim.port} got through before, and none after")


def _mend(how: Cut, victim: Victim) -> None:
    _wire(victim).mend(how)


FAULTS: dict[str, Fault] = {
    "engine_killed": Fault(
        "ballast", "SIGKILL of an engine with 2 GB of 4 KiB pages resident", _kill_engine, ends_engine=True
    ),
    "child_killed": Fault(
        "two_processes", "SIGKILL of the inner process of an engine made of two", _kill_child, overtaken=True
    ),
    "engine_stopped_busy": Fault(
        "plain",
        "SIGSTOP of an engine in mid-answer of two or more streams",
        partial(_stop, "engine"),
        partial(_go_on, "engine"),
        streams=4,
    ),
    "engine_stopped_idle": Fault(
        "plain", "SIGSTOP of an engine without requests", partial(_stop, "engine"), partial(_go_on, "engine")
    ),
    "agent_stopped": Fault(
        "plain", "SIGSTOP of the agent; its engine runs on", partial(_stop, "agent"), partial(_go_on, "agent")
    ),
    "link_dropped": Fault(
        "wires", "interface of the node's machine down", partial(_cut, "dropped"), partial(_mend, "dropped")
    ),
    "link_black_holed": Fault(
        "wires",
        "interfaces up, every packet lost without an answer, both ways",
        partial(_cut, "black_holed"),
        partial(_mend, "black_holed"),
    ),
}


async def _kill(pid: int) -> tuple[int, float, float]:
    if ended(pid):
        raise FaultFailed(f"process {pid} was dead before the fault")
    at_ns, wall_ms = _now()
    os.kill(pid, signal.SIGKILL)
    await until(lambda: ended(pid), f"the end of {pid}")
    return at_ns, wall_ms, (time.monotonic_ns() - at_ns) / 1e6


async def _reaches(victim: Victim) -> bool:
    try:
        async with asyncio.timeout(_CONNECT_S):
            _, writer = await asyncio.open_connection(victim.host, victim.port)
    except (OSError, TimeoutError):
        return False
    writer.transport.abort()
    return True


def _pid(which: Literal["engine", "agent"], victim: Victim) -> int:
    return victim.engine_pid if which == "engine" else victim.agent_pid


def _wire(victim: Victim) -> Wire:
    if victim.wire is None:
        raise FaultFailed(f"node {victim.node} has no link to cut")
    return victim.wire


def _now() -> tuple[int, float]:
    return time.monotonic_ns(), time.time() * 1e3
