"""The Celery application's settings and command lines: each here because something breaks without it."""

import pytest

from recovery import config, jobs
from recovery.config import Settings
from recovery.errors import SettingsError
from workers import app as module
from workers.steps import WORK


@pytest.fixture
def settings() -> Settings:
    """Settings with a Redis."""
    return config.load(redis={"url": "redis://127.0.0.1:1/0"})


def test_messages_survive_a_lost_worker_and_carry_no_code(settings: Settings) -> None:
    """Acknowledged late, requeued when the worker is lost, JSON only, one at a time."""
    conf = module.create_app(settings).conf
    assert (conf.task_acks_late, conf.task_reject_on_worker_lost, conf.worker_prefetch_multiplier) == (True, True, 1)
    assert list(conf.accept_content) == ["json"]
    assert conf.task_ignore_result
    assert not conf.result_extended


def test_redelivery_is_looked_for_each_second(settings: Settings) -> None:
    """Without both intervals a visibility timeout does nothing for ten times as long."""
    options = module.create_app(settings).conf.broker_transport_options
    assert options["visibility_timeout"] > 0
    assert (options["unacked_restore_interval"], options["unacked_restore_throttle"]) == (1, 1)
    assert options["global_keyprefix"].startswith("unbroken:")


def test_every_step_of_every_plan_has_work_a_task_and_a_queue() -> None:
    """A step nobody can run would hang its job."""
    for plan in (plan for plans in jobs.PLANS.values() for plan in plans):
        assert plan.name in WORK
        assert f"recovery.{plan.name}" in module.app.tasks
        assert module.app.conf.task_routes[f"recovery.{plan.name}"] == {"queue": plan.queue}


def test_a_worker_is_started_for_one_queue_with_events_on() -> None:
    """Flower sees nothing without them."""
    line = " ".join(module.worker_argv("slow", 3, "w"))
    for part in ("workers.app", "--queues recovery.slow", "--concurrency 3", "--hostname w@%h", "--task-events"):
        assert part in line
    assert module.worker_argv("recovery.fast", 1, "w")[module.worker_argv("fast", 1, "w").index("--queues") + 1] == (
        "recovery.fast"
    )
    assert module.worker_env()["REMAP_SIGTERM"] == "SIGQUIT"


@pytest.mark.parametrize(("host", "opened"), [("127.0.0.1", "true"), ("0.0.0.0", "false"), ("10.0.0.5", "false")])
def test_flowers_api_is_open_on_loopback_only(host: str, opened: str) -> None:
    """Elsewhere it wants authentication."""
    assert module.flower_env(host)["FLOWER_UNAUTHENTICATED_API"] == opened
    assert f"--address={host}" in module.flower_argv(host, 5555)


def test_workers_without_a_redis_are_refused_by_the_settings_name() -> None:
    """Not by a connection error some time later."""
    with pytest.raises(SettingsError, match=r"redis\.url"):
        config.load(redis={"url": ""}).redis.address()
