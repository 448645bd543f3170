"""What processes do with their time: the sums in virtual time, and the measurement on real processes."""

import os
import signal
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node import effort
from node.effort import EffortLog, Process, Thread, measure
from tests.rigs.processes import Program, program, script

MS = 1_000_000
SPINS = "print('ready', flush=True)\nwhile True: pass"


def one(thread: Thread, ran: int = 0) -> dict[int, Process]:
    """Build a measurement of one process with one thread."""
    return {1: Process(ran, {1: thread})}


def test_waiting_for_a_cpu_is_summed_from_the_first_look_on() -> None:
    """What was waited for before is no matter."""
    log = EffortLog(0.0)
    log.take(1.0, one(Thread(0, 500 * MS)))
    log.take(2.0, one(Thread(0, 700 * MS)))

    assert log.wait_ms == 200


def test_a_wait_that_goes_on_counts_before_the_kernel_has_added_it_and_only_once() -> None:
    """A starved thread shows nothing until it runs again."""
    log = EffortLog(0.0)
    for now in (1.0, 1.1, 1.2):
        log.take(now, one(Thread(5, 0, "R")))
    assert log.wait_ms == 200

    log.take(1.3, one(Thread(6, 290 * MS, "S")))

    assert log.wait_ms == 290


def test_a_thread_that_runs_or_sleeps_does_not_wait() -> None:
    """Runnable while its run time grows: it has a CPU."""
    log = EffortLog(0.0)
    for step in range(5):
        log.take(step / 10, one(Thread(step, 0, "R")))
        log.take(step / 10 + 0.05, one(Thread(step, 0, "S")))

    assert log.wait_ms == 0


def test_waiting_for_a_disk_counts() -> None:
    """State D when looked at."""
    log = EffortLog(0.0)
    log.take(1.0, one(Thread(0, 0, "S")))
    log.take(1.1, one(Thread(0, 0, "D")))

    assert log.wait_ms == 100


def test_threads_that_wait_side_by_side_wait_no_longer_than_the_clock() -> None:
    """Else many idle threads' small waits would excuse a stuck one."""
    log = EffortLog(0.0)
    log.take(1.0, {1: Process(0, {tid: Thread(0, 0) for tid in range(9)})})
    log.take(1.1, {1: Process(0, {tid: Thread(0, 90 * MS) for tid in range(9)})})

    assert log.wait_ms == 100


def test_sums_do_not_go_back_when_a_thread_or_a_process_ends() -> None:
    """They are since the engine's start."""
    log = EffortLog(0.0)
    log.take(1.0, {1: Process(5 * MS, {1: Thread(0, 0), 2: Thread(0, 0)}), 2: Process(7 * MS)})
    log.take(1.1, {1: Process(6 * MS, {1: Thread(0, 0), 2: Thread(0, 40 * MS)}), 2: Process(9 * MS)})
    log.take(1.2, {1: Process(6 * MS, {1: Thread(0, 0)})})

    assert (log.cpu_ms, log.wait_ms) == (15, 40)


measured = st.builds(
    Process,
    st.integers(0, 10**10),
    st.dictionaries(
        st.integers(1, 3), st.builds(Thread, st.integers(0, 3), st.integers(0, 10**10), st.sampled_from("RSD"))
    ),
)


@given(st.lists(st.tuples(st.floats(0, 1), st.dictionaries(st.integers(1, 2), measured)), max_size=20))
def test_sums_never_go_back_and_waiting_never_outruns_the_clock(
    steps: list[tuple[float, dict[int, Process]]],
) -> None:
    """Whatever is measured."""
    log, now = EffortLog(0.0), 0.0
    for pause, found in steps:
        now += pause
        before = (log.cpu_ms, log.wait_ms)
        log.take(now, found)
        assert log.cpu_ms >= before[0]
        assert before[1] <= log.wait_ms <= before[1] + pause * 1_000 + 1
    assert log.wait_ms <= now * 1_000 + 1


def used(running: Program) -> int:
    """Return the CPU time a process has used, in ns."""
    found, cost = measure([running.identity], closely=True)
    assert cost > 0
    return found[running.pid].ran


@pytest.mark.parametrize("schedstat", [True, False])
def test_a_computing_process_uses_time_and_a_stopped_one_does_not(
    monkeypatch: pytest.MonkeyPatch, schedstat: bool
) -> None:
    """With the kernel's scheduler figures, and without."""
    monkeypatch.setattr(effort, "_SCHEDSTAT", schedstat)
    with script(SPINS) as running:
        before = used(running)
        end = time.monotonic() + 30
        while used(running) < before + 20 * MS and time.monotonic() < end:
            time.sleep(0.01)
        assert used(running) >= before + 20 * MS

        os.kill(running.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, running.pid, os.WSTOPPED)
        stopped = used(running)
        time.sleep(0.1)
        found, _ = measure([running.identity], closely=True)

        assert found[running.pid].ran == stopped
        assert {thread.state for thread in found[running.pid].threads.values()} == {"T"}


def test_a_starved_process_waits() -> None:
    """Two that spin on one CPU: one of them is always in the run queue."""
    with script(SPINS) as first, script(SPINS) as second:
        cpu = min(os.sched_getaffinity(0))
        for running in (first, second):
            os.sched_setaffinity(running.pid, {cpu})
        log = EffortLog(time.monotonic())
        log.take(time.monotonic(), measure([first.identity], closely=True)[0])
        end = time.monotonic() + 30
        while log.wait_ms < 50 and time.monotonic() < end:
            time.sleep(0.02)
            log.take(time.monotonic(), measure([first.identity], closely=True)[0])

        assert log.wait_ms >= 50


def test_a_process_that_is_gone_or_another_one_is_not_measured() -> None:
    """Its sums stay as they were."""
    with program("/bin/sleep", "60") as running:
        stranger = type(running.identity)(running.pid, running.identity.started - 1)

        assert measure([stranger], closely=False)[0] == {}
