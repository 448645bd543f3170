"""A gateway's shared parts for unit tests."""

from collections.abc import AsyncGenerator
from typing import Any, cast

import pytest

from api.context import Context
from api.journaling import JournalWriter
from api.metrics import Metrics
from api.routing import RoutingTable
from recovery.config import Settings
from recovery.store import Store
from tests.unit.api.scripted import REQUEST


@pytest.fixture
async def context() -> AsyncGenerator[Context]:
    """A gateway's parts with Redis away."""
    settings = Settings(request=cast("Any", REQUEST), routing=cast("Any", {"policy": "fastest"}))
    store = Store("redis://127.0.0.1:1/0", 200)
    table = RoutingTable(settings, store, cast("Any", None))
    metrics = Metrics()
    context = Context("g", settings, store, table, JournalWriter(store, "g", settings.request, metrics), metrics)
    try:
        yield context
    finally:
        await context.journal.aclose()
        await store.aclose()
