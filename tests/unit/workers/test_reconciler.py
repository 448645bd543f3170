"""What the reconciler finds due: judged on job records alone, on a store that is never asked."""

import itertools
import time
from dataclasses import replace
from typing import Any, cast

import pytest

from recovery import jobs
from recovery.jobs import Job, JobState, Step
from recovery.store import Store
from workers import reconciler
from workers.nudge import Nudger
from workers.reconciler import Reconciler

NOW = 1_000_000
FENCE, RECLAIM = jobs.RECOVER[0], jobs.RECOVER[2]


def make_job(**steps: Step) -> Job:
    """A job created long ago, with the steps given and the others pending."""
    return Job(
        id="a.7", node="a", epoch=7, action="recover", state=JobState.RUNNING, cause="", evidence="",
        started_by="sentinel", reason="", created_ms=NOW - 60_000, updated_ms=NOW, ended_ms=0, new_epoch=8, error="",
        steps={plan.name: Step(plan.name) for plan in jobs.RECOVER} | steps,
    )  # fmt: skip


@pytest.fixture
def judge() -> Reconciler:
    """A reconciler whose store and nudger are never used here."""
    return Reconciler(cast("Store", None), cast("Nudger", None))


def fenced(ago_ms: int) -> Step:
    """A fence that succeeded some time ago."""
    return Step("fence", "succeeded", 1, began_ms=NOW - ago_ms, ended_ms=NOW - ago_ms)


def test_a_step_that_has_just_become_ready_is_left_to_its_message(judge: Reconciler) -> None:
    """The worker before it has sent one."""
    assert not judge._due(make_job(fence=fenced(500)), RECLAIM, NOW)
    assert judge._due(make_job(fence=fenced(2_000)), RECLAIM, NOW)


def test_a_step_that_was_given_back_or_whose_lease_lapsed_is_due_at_once(judge: Reconciler) -> None:
    """Nobody has sent a message for it."""
    waiting = Step("reclaim", "pending", 0, ended_ms=NOW - 10, began_ms=NOW - 500)
    lost = Step("reclaim", "running", 1, lease_ms=NOW - 10, began_ms=NOW - 4_000)
    assert judge._due(make_job(fence=fenced(600), reclaim=waiting), RECLAIM, NOW)
    assert judge._due(make_job(fence=fenced(600), reclaim=lost), RECLAIM, NOW)


def test_nudges_for_the_same_standing_come_ever_more_rarely(judge: Reconciler, monkeypatch: pytest.MonkeyPatch) -> None:
    """When no worker is there, its queue must not fill without bound."""
    clock = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: clock)
    job, sent = make_job(fence=fenced(2_000)), []
    for _ in range(240):
        if judge._due(job, RECLAIM, NOW):
            sent.append(clock)
        clock += 0.5
    gaps = [after - before for before, after in itertools.pairwise(sent)]
    assert gaps == sorted(gaps)
    assert gaps[0] == 1.5
    assert gaps[-1] == 30.0
    assert len(sent) < 10


def test_a_change_of_the_step_starts_the_pauses_anew(judge: Reconciler) -> None:
    """A step that waits for its agent is tried again with every tick."""
    job = make_job(fence=fenced(5_000), reclaim=Step("reclaim", "pending", 0, ended_ms=NOW - 400))
    assert judge._due(job, RECLAIM, NOW)
    assert not judge._due(job, RECLAIM, NOW)
    again = replace(job, steps=job.steps | {"reclaim": Step("reclaim", "pending", 0, ended_ms=NOW - 5)})
    assert judge._due(again, RECLAIM, NOW)


def test_a_message_sent_by_the_dispatcher_itself_is_not_repeated_at_once(judge: Reconciler) -> None:
    """It knows of it until the step's record changes."""
    job = make_job()
    judge.note_sent(job, "fence")
    assert judge.knows(job, FENCE)
    assert not judge._due(job, FENCE, NOW)
    moved = replace(job, steps=job.steps | {"fence": Step("fence", "running", 1, lease_ms=NOW - 1)})
    assert not judge.knows(moved, FENCE)


def test_a_step_is_late_past_its_deadline_but_not_right_after_redis_was_away(judge: Reconciler) -> None:
    """While Redis was away nobody could work."""
    old = Step("reclaim", "pending", 1, ended_ms=NOW - 1, began_ms=NOW - int(RECLAIM.deadline_s * 1_000) - 1)
    young = replace(old, began_ms=NOW - 1_000)
    assert judge._late(make_job(fence=fenced(5_000), reclaim=old), RECLAIM, NOW)
    assert not judge._late(make_job(fence=fenced(5_000), reclaim=young), RECLAIM, NOW)
    assert not judge._late(make_job(fence=fenced(5_000)), RECLAIM, NOW)
    judge._lenient_until = time.monotonic() + 10
    assert not judge._late(make_job(fence=fenced(5_000), reclaim=old), RECLAIM, NOW)


@pytest.mark.parametrize(
    ("steps", "holds"),
    [
        ({}, False),
        ({"reclaim": "pending"}, False),
        ({"reclaim": "running"}, True),
        ({"reclaim": "succeeded", "restart": "running"}, True),
        ({"reclaim": "succeeded", "restart": "succeeded", "warm_up": "succeeded"}, False),
        ({"reclaim": "skipped"}, False),
    ],
)
def test_a_takeover_permit_is_prolonged_from_reclaim_to_warm_up(steps: dict[str, Any], holds: bool) -> None:
    """Neither before nor after."""
    job = make_job(**{name: Step(name, state) for name, state in steps.items()})
    assert reconciler._holds_permit(job) is holds
