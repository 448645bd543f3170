"""One undisturbed engine for the tests of this folder that do not kill theirs."""

from collections.abc import AsyncGenerator

import pytest
import pytest_asyncio

from tests.rigs.engine import RunningEngine, running_engine


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def steady(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[RunningEngine]:
    """An engine that lives through a whole module; only its address may be used."""
    async with running_engine(tmp_path_factory.mktemp("steady")) as engine:
        yield engine
