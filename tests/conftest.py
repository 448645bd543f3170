"""Fixtures every test may use: a real Redis-compatible server and a store on it."""

from collections.abc import AsyncGenerator, Generator

import pytest
import redis

from recovery.store import Store
from tests.rigs.valkey import Valkey, running_valkey


@pytest.fixture(scope="session")
def shared_valkey(tmp_path_factory: pytest.TempPathFactory) -> Generator[Valkey]:
    """One server for all tests that do not hurt it."""
    with running_valkey(tmp_path_factory.mktemp("valkey")) as server:
        yield server


@pytest.fixture
def redis_url(shared_valkey: Valkey) -> str:
    """The shared server's address, emptied for this test."""
    client = redis.Redis.from_url(shared_valkey.url)
    try:
        client.flushall()
    finally:
        client.close()
    return shared_valkey.url


@pytest.fixture
def own_valkey(tmp_path_factory: pytest.TempPathFactory) -> Generator[Valkey]:
    """A server of this test's own, to be killed and restarted at will."""
    with running_valkey(tmp_path_factory.mktemp("own-valkey")) as server:
        yield server


@pytest.fixture
async def store(redis_url: str) -> AsyncGenerator[Store]:
    """A store on the emptied shared server."""
    store = Store(redis_url)
    try:
        yield store
    finally:
        await store.aclose()
