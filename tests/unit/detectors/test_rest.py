"""Reports of a node at rest may go unread for a moment; none that says something new does."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from detectors.evidence import Pong, Report, Rested
from detectors.reports import at_rest, report_of
from protocol import unbroken_pb2 as pb
from recovery.registry import NodeState
from tests.unit.detectors.courtroom import BUSY, RULES, SERVING, World, open_court


def resting() -> pb.NodeReport:
    """Return what an agent says of an engine without work."""
    return pb.NodeReport(
        node="n1", epoch=1, phase=pb.PHASE_SERVING, ready=True, free_ratio=0.5, lease_held=True, progress=7, at_ms=5_000
    )


def test_a_node_without_work_that_says_the_same_again_is_at_rest() -> None:
    """Only its clock and its sums go on."""
    known, now = report_of(resting()), resting()
    now.at_ms, now.cpu_ms, now.wait_ms, now.sample_age_ms, now.progress_age_ms = 5_200, 10, 3, 40, 90
    assert at_rest(now, known)


def _set(**fields: object) -> Callable[[pb.NodeReport], None]:
    def change(report: pb.NodeReport) -> None:
        for name, value in fields.items():
            setattr(report, name, value)

    return change


NEWS: dict[str, Callable[[pb.NodeReport], None]] = {
    "work": _set(running=1),
    "a queue": _set(waiting=1),
    "a counter that moved": _set(progress=8),
    "a counter that is not to be had": _set(progress_age_ms=400),
    "another epoch": _set(epoch=2),
    "another phase": _set(phase=pb.PHASE_DOWN),
    "an engine not ready": _set(ready=False),
    "a lost lease": _set(lease_held=False),
    "a sick GPU": _set(gpu=pb.GPU_STATE_DRIVER_UNRESPONSIVE),
    "a stopped engine": _set(halted=True),
    "a probe": _set(probe_ms=1),
    "less memory": _set(free_ratio=0.25),
    "another clock": _set(at_ms=100),
}


@pytest.mark.parametrize("news", NEWS.values(), ids=NEWS.keys())
def test_whatever_may_be_judged_is_news(news: Callable[[pb.NodeReport], None]) -> None:
    """It is told at once."""
    report = resting()
    news(report)
    assert not at_rest(report, report_of(resting()))


def test_the_first_report_is_news() -> None:
    """Nothing is known before."""
    assert not at_rest(resting(), None)


def test_work_begins_where_rest_ended_although_reports_in_between_were_not_read() -> None:
    """Else the rest would count as standing, and an engine that has just got work would be held for stuck."""

    def standing(*, told_late: bool) -> bool:
        court = open_court(NodeState.ALIVE, World())
        judge, last = court.judge, court.judge.report
        assert last is not None

        def later(report: Report, seconds: float) -> Report:
            return replace(report, at_s=last.at_s + seconds, progress=last.progress)

        unread = RULES.stall_s
        for step in range(1, round(unread / 0.1)):
            court.now += 0.1
            judge.take(Pong(judge.ping(court.now), 1_000.0, None), court.now)
            judge.tick(court.now)
            rested = later(SERVING, step * 0.1)
        if told_late:
            judge.take(Rested(rested), court.now)
        judge.take(Pong(judge.ping(court.now), 1_000.0, later(BUSY, unread)), court.now)
        return judge.ping_interval_s < RULES.ping_interval_s  # it is looked at more closely: it stands

    assert standing(told_late=False)
    assert not standing(told_late=True)
