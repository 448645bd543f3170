"""What an engine's processes do with their time: compute, wait for a CPU or a disk, or neither (requirements E4).

`EffortLog` is pure; `measure` reads /proc. A starved engine waits, a computing one computes, a stuck one does neither.
"""

import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from node import processes
from node.processes import Identity

_TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
_SCHEDSTAT = Path("/proc/self/schedstat").exists()
_CPU_CLOCK = 2
"""Kind of a process's CPU clock in the kernel's numbering: run time to the nanosecond, ended threads included."""


@dataclass(frozen=True, slots=True)
class Thread:
    """One thread as measured, times in ns since its start."""

    ran: int
    waited: int
    """In a run queue; the kernel adds a wait only when it is over."""
    state: str = ""
    """As in /proc/PID/stat; empty: not looked at."""


@dataclass(frozen=True, slots=True)
class Process:
    """One process as measured."""

    ran: int
    """ns of CPU time since its start."""
    threads: Mapping[int, Thread] = field(default_factory=dict)


class EffortLog:
    """Sums over an engine's processes, which never go back; times are monotonic seconds of the caller's clock."""

    def __init__(self, now: float) -> None:
        self._at = now
        self._ran: dict[int, int] = {}
        self._waited = 0.0
        self._threads: dict[tuple[int, int], Thread] = {}

    @property
    def cpu_ms(self) -> int:
        """CPU time used since the engine's start."""
        return sum(self._ran.values()) // 1_000_000

    @property
    def wait_ms(self) -> int:
        """Time in which at least one thread had to wait for a CPU or a disk, since the first measurement."""
        return round(self._waited * 1_000)

    def age_s(self, now: float) -> float:
        """Return how long ago the last measurement was."""
        return max(0.0, now - self._at)

    def take(self, now: float, measured: Mapping[int, Process]) -> None:
        """Take a measurement in, by pid."""
        passed = max(0.0, now - self._at)
        waited = 0
        threads: dict[tuple[int, int], Thread] = {}
        seen = set(self._ran)
        for pid, process in measured.items():
            self._ran[pid] = max(self._ran.get(pid, 0), process.ran)
            for tid, thread in process.threads.items():
                before = self._threads.get((pid, tid), Thread(0, 0))
                grown, threads[pid, tid] = _wait(before, thread, round(passed * 1e9))
                waited += grown if pid in seen else 0  # what it waited before we looked is no matter
        # Threads that wait side by side wait no longer than the time that has passed.
        self._waited += min(passed, waited / 1e9)
        self._threads = threads
        self._at = now


def _wait(before: Thread, now: Thread, passed: int) -> tuple[int, Thread]:
    """Return by how much a thread's waiting has grown, and the thread with what was counted so far."""
    grown = max(0, now.waited - before.waited)
    counted = max(before.waited, now.waited)
    if now.ran == before.ran and before.state == now.state == "R":
        # Runnable all the time and never run: a wait that goes on, which the kernel has not added yet.
        ahead = max(0, passed - grown)
        grown, counted = grown + ahead, counted + ahead
    if now.state == "D":
        grown += passed
    return grown, Thread(now.ran, counted, now.state)


def measure(identities: Iterable[Identity], *, closely: bool) -> tuple[dict[int, Process], float]:
    """Measure processes and say what that cost, in s of CPU time; `closely` looks at each thread's state as well."""
    began = time.thread_time()
    found = {}
    for identity in identities:
        stat = processes.read(identity.pid)
        if stat is None or stat.started != identity.started:
            continue
        try:
            ran = time.clock_gettime_ns(~identity.pid << 3 | _CPU_CLOCK)
        except OSError:
            ran = stat.ticks * _TICK_NS
        tids = processes.threads(identity.pid)
        measured = ((tid, _thread(identity.pid, tid, closely=closely)) for tid in tids)
        found[identity.pid] = Process(ran, {tid: thread for tid, thread in measured if thread is not None})
    return found, time.thread_time() - began


def _thread(pid: int, tid: int, *, closely: bool) -> Thread | None:
    stat = processes.read(pid, tid) if closely or not _SCHEDSTAT else None
    state = stat.state if stat is not None else ""
    if not _SCHEDSTAT:
        return None if stat is None else Thread(stat.ticks * _TICK_NS, 0, state)
    try:
        ran, waited, _ = Path(f"/proc/{pid}/task/{tid}/schedstat").read_bytes().split()
    except (OSError, ValueError):
        return None
    return Thread(int(ran), int(waited), state)
