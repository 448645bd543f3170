"""The journal's writer on a real server: what has ended is forgotten, whatever happens at the same time."""

import asyncio

from api.journaling import JournalWriter, Record
from api.metrics import Metrics
from recovery.config import RequestSettings
from recovery.store import PREFIX, Store, node_key


async def test_requests_that_end_while_another_one_is_being_forgotten_are_forgotten_too(store: Store) -> None:
    """Nothing of them stays in Redis: no entry, no tokens, no place among the node's requests."""
    writer = JournalWriter(store, "gw", RequestSettings(), Metrics())
    records = [Record(f"r{number}", "m", "m@1", [1, 2], 10, {}, [3, 4]) for number in range(5)]
    for record in records:
        writer.moved(record, "a", 1, 0, in_store=False)
        await writer.open(record)
    await writer.flush()
    assert await _left(store) == 10
    # Given the first one's end, which is being written
    writer.close(records[0])
    flushing = asyncio.create_task(writer.flush())
    await asyncio.sleep(0)
    # When the others end meanwhile
    for record in records[1:]:
        writer.close(record)
    await flushing
    await writer.flush()
    # Then
    assert await _left(store) == 0
    assert await store.redis.scard(node_key("a", "requests")) == 0
    await writer.aclose()


async def _left(store: Store) -> int:
    return len([key async for key in store.redis.scan_iter(match=PREFIX + "{request:*")])
