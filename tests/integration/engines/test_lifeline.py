"""The lifeline between real processes."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from engines import lifeline
from engines.lifeline import Fate

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="robust mutexes are Linux's")

HOLDER = """
import sys, time
from pathlib import Path
from engines import lifeline
lifeline.hold(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(60)
"""


@contextmanager
def holder(path: Path) -> Iterator[subprocess.Popen[str]]:
    """Run a process that holds ``path``; kill it in the end."""
    process = subprocess.Popen([sys.executable, "-c", HOLDER, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "held\n"
        yield process
    finally:
        process.kill()
        process.wait(10)
        process.stdout.close()


@contextmanager
def watching(path: Path, timeout: float | None = None) -> Iterator[tuple[Future[Fate], threading.Event]]:
    """Watch ``path`` in a thread; stop it in the end."""
    stop = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        try:
            yield pool.submit(lifeline.wait_for_death, path, stop, timeout), stop
        finally:
            stop.set()


def test_the_watcher_sees_a_sigkill(tmp_path: Path) -> None:
    """It wakes with DIED, not on its next look at the stop flag."""
    path = tmp_path / "life"
    lifeline.create(path)
    with holder(path) as process, watching(path) as (fate, _):
        # Given a watcher that waits
        assert lifeline.is_held(path)
        assert not fate.done()
        # When
        os.kill(process.pid, signal.SIGKILL)
        # Then
        assert fate.result(10) is Fate.DIED


def test_a_stopped_process_still_holds_its_lifeline(tmp_path: Path) -> None:
    """A hang is no death."""
    path = tmp_path / "life"
    lifeline.create(path)
    with holder(path) as process, watching(path, timeout=0.5) as (fate, _):
        os.kill(process.pid, signal.SIGSTOP)
        assert fate.result(10) is Fate.STOPPED
        assert lifeline.is_held(path)


def test_the_watcher_returns_when_told_to_stop(tmp_path: Path) -> None:
    """Its owner must be able to leave while the engine lives."""
    path = tmp_path / "life"
    lifeline.create(path)
    with holder(path), watching(path) as (fate, stop):
        assert not fate.done()
        stop.set()
        assert fate.result(10) is Fate.STOPPED


def test_the_watcher_waits_for_a_holder_first(tmp_path: Path) -> None:
    """It may start before its engine, and must not take an unheld lifeline for a death."""
    path = tmp_path / "life"
    lifeline.create(path)
    # Given nobody holds it
    assert lifeline.wait_for_death(path, threading.Event(), 0.1) is Fate.STOPPED
    # When one comes and dies
    with watching(path) as (fate, _), holder(path) as process:
        os.kill(process.pid, signal.SIGKILL)
        # Then
        assert fate.result(10) is Fate.DIED


def test_the_watcher_that_is_never_fed_can_be_stopped(tmp_path: Path) -> None:
    """An engine that dies before it holds anything leaves no thread behind."""
    path = tmp_path / "life"
    lifeline.create(path)
    with watching(path) as (fate, stop):
        stop.set()
        assert fate.result(10) is Fate.STOPPED


def test_each_watcher_learns_of_the_same_death(tmp_path: Path) -> None:
    """One watcher must not take the news from another, early or late."""
    path = tmp_path / "life"
    lifeline.create(path)
    with holder(path) as process, watching(path) as (one, _), watching(path) as (other, _):
        os.kill(process.pid, signal.SIGKILL)
        assert one.result(10) is Fate.DIED
        assert other.result(10) is Fate.DIED
        assert lifeline.wait_for_death(path, threading.Event(), 5) is Fate.DIED
        assert not lifeline.is_held(path)


def test_a_lifeline_has_one_holder_and_a_dead_one_must_be_made_anew(tmp_path: Path) -> None:
    """A second engine neither shares nor inherits it."""
    path = tmp_path / "life"
    lifeline.create(path)
    with holder(path) as process:
        with pytest.raises(TimeoutError):
            lifeline.hold(path, timeout=0.1)
        process.kill()
        process.wait(10)
        with pytest.raises(OSError, match="create a fresh one"):
            lifeline.hold(path)
    lifeline.create(path)
    with holder(path):
        assert lifeline.is_held(path)


def test_only_the_main_thread_may_hold(tmp_path: Path) -> None:
    """A lock taken by a worker thread would end with that thread."""
    path = tmp_path / "life"
    lifeline.create(path)
    with ThreadPoolExecutor(1) as pool, pytest.raises(RuntimeError, match="main thread"):
        pool.submit(lifeline.hold, path).result(10)


def test_a_platform_without_robust_mutexes_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent then watches by pidfd."""
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(lifeline.LifelineUnsupportedError, match="pidfd"):
        lifeline.create(tmp_path / "life")
