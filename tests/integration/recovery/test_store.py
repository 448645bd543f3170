"""The door to Redis: what is away is said to be away, quickly, and used again when it is back."""

import os
import signal
import time

import pytest

from recovery import jobs, leases
from recovery.errors import StoreUnavailable, StoreUnsafe
from recovery.store import Store
from tests.rigs.ports import free_port
from tests.rigs.valkey import Valkey


async def test_a_redis_that_is_not_there_is_unavailable_at_once() -> None:
    """No retry loop hides it."""
    store = Store(f"redis://127.0.0.1:{free_port()}/0")
    try:
        began = time.monotonic()
        with pytest.raises(StoreUnavailable):
            await leases.current_epoch(store, "a")
        assert time.monotonic() - began < 2.0
    finally:
        await store.aclose()


async def test_a_redis_that_hangs_is_unavailable_after_the_deadline(own_valkey: Valkey) -> None:
    """Scripts, plain commands and pipelines alike; then it is used again."""
    store = Store(own_valkey.url, timeout_ms=200)
    try:
        await leases.current_epoch(store, "a")
        os.kill(own_valkey.pid, signal.SIGSTOP)
        try:
            for ask in (leases.current_epoch(store, "a"), leases.fence(store, "a", 1, "j"), jobs.live(store)):
                with pytest.raises(StoreUnavailable):
                    await ask
        finally:
            os.kill(own_valkey.pid, signal.SIGCONT)
        assert await leases.current_epoch(store, "a") in (0, 2)
    finally:
        await store.aclose()


async def test_a_restarted_redis_costs_no_error_and_no_script(own_valkey: Valkey) -> None:
    """Connections and scripts are renewed without the caller noticing."""
    store = Store(own_valkey.url)
    try:
        assert await leases.fence(store, "a", 1, "j") == 2
        own_valkey.restart()
        assert await leases.fence(store, "a", 1, "j") == 2
        assert await store.run_many("assign", [(["unbroken:{request:x}"], [0, "b", 1, "w"])]) == [["gone"]]
    finally:
        await store.aclose()


async def test_a_redis_that_may_evict_our_state_is_refused(own_valkey: Valkey) -> None:
    """With what to set instead."""
    store = Store(own_valkey.url)
    try:
        await store.check()
        await store.redis.config_set("maxmemory-policy", "allkeys-lru")
        with pytest.raises(StoreUnsafe, match="noeviction"):
            await store.check()
    finally:
        await store.aclose()
