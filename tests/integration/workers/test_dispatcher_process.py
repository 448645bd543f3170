"""The dispatcher as a process: refuses what cannot work, stops when told."""

import os
import subprocess
import sys
from pathlib import Path

import redis

from tests.rigs.valkey import Valkey
from tests.rigs.workers import Process, WorkerSet


def refused(url: str) -> str:
    """Run a dispatcher that must refuse to start and return what it said."""
    done = subprocess.run(
        [sys.executable, "-m", "workers"], env={**os.environ, "UNBROKEN_REDIS__URL": url}, capture_output=True,
        text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    return done.stderr


def test_it_refuses_to_run_without_a_redis() -> None:
    """And names the setting."""
    assert "redis.url" in refused("")


def test_it_refuses_a_redis_that_may_evict_our_state(own_valkey: Valkey) -> None:
    """And says what to set."""
    client = redis.Redis.from_url(own_valkey.url)
    try:
        client.config_set("maxmemory-policy", "allkeys-lru")
    finally:
        client.close()
    assert "noeviction" in refused(own_valkey.url)


def test_it_waits_for_a_redis_that_comes_later_and_stops_when_told(own_valkey: Valkey, tmp_path: Path) -> None:
    """The order in which a stack starts does not matter; TERM ends it with code 0."""
    own_valkey.stop()
    dispatcher: Process = WorkerSet(own_valkey.url, tmp_path).dispatcher
    dispatcher.start()
    try:
        own_valkey.start()
        dispatcher.wait_ready()
    finally:
        assert dispatcher.stop() == 0
