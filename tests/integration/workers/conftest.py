"""One worker set for each module of tests: starting Celery takes seconds."""

import uuid
from collections.abc import AsyncGenerator, Callable, Generator

import pytest

from recovery.store import Store
from tests.rigs.valkey import Valkey, running_valkey
from tests.rigs.workers import WorkerSet, running_workers


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[Valkey]:
    """A server of this module's own: the shared one is emptied between tests, under live workers."""
    with running_valkey(tmp_path_factory.mktemp("valkey")) as server:
        yield server


@pytest.fixture(scope="module")
def worker_env() -> dict[str, str]:
    """Settings of this module's workers; modules override it."""
    return {}


@pytest.fixture(scope="module")
def workers(
    server: Valkey, worker_env: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Generator[WorkerSet]:
    """The module's worker set."""
    with running_workers(server.url, tmp_path_factory.mktemp("workers"), **worker_env) as workers:
        yield workers


@pytest.fixture
async def store(workers: WorkerSet, server: Valkey) -> AsyncGenerator[Store]:
    """A store on the module's server."""
    store = Store(server.url)
    try:
        yield store
    finally:
        await store.aclose()


@pytest.fixture
def new_node() -> Callable[[], str]:
    """Return fresh node names: the server is not emptied between tests."""
    return lambda: f"n{uuid.uuid4().hex[:6]}"
