"""One running stack per test module: it must recover from every fault anyway."""

from collections.abc import AsyncGenerator

import pytest
import pytest_asyncio

from cli.faults import fault_settings
from tests.rigs.stack import RunningStack, running_stack


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[RunningStack]:
    """A whole stack with two real engines, shared by the tests of a module."""
    async with running_stack(fault_settings(tmp_path_factory.mktemp("stack"))) as running:
        yield running
