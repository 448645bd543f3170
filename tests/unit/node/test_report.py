"""What the agent says of its node, made of a host and an engine that only hold values."""

import time
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from engines.base import Progress
from node.effort import EffortLog, Process, Thread
from node.host import Host
from node.lease import LeaseKeeper
from node.progress import ProgressLog
from node.report import node_report
from protocol import unbroken_pb2 as pb


@dataclass
class FakeWatch:
    """A death watch of a halted engine."""

    halted: bool = True


@dataclass
class FakeRecord:
    """An engine's record."""

    url: str = "http://127.0.0.1:1"
    pid: int = 7


@dataclass
class FakeRunning:
    """An engine."""

    progress: ProgressLog = field(default_factory=lambda: ProgressLog(time.monotonic()))
    effort: EffortLog = field(default_factory=lambda: EffortLog(time.monotonic()))
    record: FakeRecord = field(default_factory=FakeRecord)
    watch: FakeWatch = field(default_factory=FakeWatch)
    dead: str = ""
    on_cpu: bool = True


@dataclass
class FakeHost:
    """A host."""

    engine: FakeRunning | None
    phase: int = pb.PHASE_SERVING
    ready: bool = True
    node: str = "a"
    epoch: int = 3
    detail: str = ""


@dataclass
class FakeLease:
    """A lease that is held."""

    held: bool = True


def report(host: FakeHost) -> pb.NodeReport:
    """Make the report."""
    return node_report(cast("Host", host), cast("LeaseKeeper", FakeLease()))


def test_what_the_engines_processes_do_is_reported() -> None:
    """The sentinel judges a hang by it (requirements E4)."""
    engine = FakeRunning()
    now = time.monotonic()
    engine.progress.answered(now, Progress(5, running=2, waiting=1, free_ratio=0.5, prefilling=1))
    engine.effort.take(now, {7: Process(0, {7: Thread(0, 0)})})
    engine.effort.take(now + 1, {7: Process(40_000_000, {7: Thread(0, 30_000_000)})})

    said = report(FakeHost(engine))

    assert (said.cpu_ms, said.wait_ms, said.halted, said.computes_on_cpu) == (40, 30, True, True)
    assert (said.progress, said.running, said.waiting, said.prefilling) == (5, 2, 1, 1)


@pytest.mark.parametrize(
    ("phase", "said", "shown"),
    [
        (pb.PHASE_SERVING, "serving", pb.PHASE_SERVING),
        (pb.PHASE_SERVING, "compiling", pb.PHASE_COMPILING),
        (pb.PHASE_FENCED, "compiling", pb.PHASE_FENCED),
    ],
)
def test_an_engine_that_compiles_has_a_phase_of_its_own_and_stays_ready(phase: int, said: Any, shown: int) -> None:
    """The sentinel gives it another deadline; what it was sent is not taken away."""
    engine = FakeRunning()
    engine.progress.answered(time.monotonic(), Progress(5, running=1, waiting=0, free_ratio=1.0, phase=said))

    made = report(FakeHost(engine, phase=phase))

    assert (made.phase, made.ready) == (shown, True)


def test_without_an_engine_nothing_is_claimed() -> None:
    """Neither halted nor computing."""
    made = report(FakeHost(None, phase=pb.PHASE_DOWN, ready=False))

    assert (made.cpu_ms, made.halted, made.computes_on_cpu, made.engine_pid) == (0, False, False, 0)
