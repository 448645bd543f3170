"""The journal on a real server: what is written comes back, an attempt is given once, strays are dropped."""

import asyncio
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from recovery import journal
from recovery.journal import Assignment, Entry
from recovery.store import Store, inbox_key, node_key, request_key

ENTRY = Entry("r1", "gw", 0, "a", 7, 3, 50, 0, "m@1", "m")


@given(st.lists(st.integers(0, 2**32 - 1)))
def test_token_ids_survive_packing(ids: list[int]) -> None:
    """All of uint32."""
    assert journal.unpack(journal.pack(ids)) == ids


async def test_prompt_and_delivered_tokens_come_back_as_written(store: Store) -> None:
    """Written in pieces by offset; a repeated piece changes nothing, not even the watermark."""
    await journal.open_entry(store, ENTRY, [1, 2, 3], {"temperature": 0}, 60)
    await journal.record(store, "r1", 0, [10, 11], 60)
    await journal.record(store, "r1", 2, [12], 60)
    await journal.record(store, "r1", 0, [10, 11], 60)
    assert await journal.read_tokens(store, "r1") == ([1, 2, 3], [10, 11, 12])
    assert await journal.entries_on(store, "a", 7) == [replace(ENTRY, delivered=3)]


async def test_a_record_that_comes_after_the_end_leaves_nothing_behind(store: Store) -> None:
    """Else user content would stay without a time to live."""
    await journal.open_entry(store, ENTRY, [1], {}, 60)
    await journal.close_entry(store, "r1", ["a"])
    await journal.record(store, "r1", 0, [10], 60)
    assert await store.redis.exists(request_key("r1"), request_key("r1", "tokens")) == 0
    assert await store.redis.scard(node_key("a", "requests")) == 0


async def test_user_content_lapses_unless_the_stream_goes_on(store: Store) -> None:
    """Each record prolongs the whole entry, so a long stream keeps its journal."""
    await journal.open_entry(store, ENTRY, [1], {}, 60)
    assert 0 < await store.redis.ttl(request_key("r1")) <= 60
    await journal.record(store, "r1", 0, [10], 900)
    assert await store.redis.ttl(request_key("r1")) > 60
    assert await store.redis.ttl(request_key("r1", "tokens")) > 60


async def test_entries_of_an_epoch_are_found_and_strays_dropped(store: Store) -> None:
    """What moved away or ended no longer counts as running there; other epochs are left alone."""
    for request, epoch in (("here", 7), ("newer", 8), ("moved", 7), ("ended", 7)):
        await journal.open_entry(store, replace(ENTRY, request=request, epoch=epoch), [1], {}, 60)
    await journal.assign(store, "moved", 0, "b", 3, "gw")
    await store.redis.delete(request_key("ended"))
    assert [entry.request for entry in await journal.entries_on(store, "a", 7)] == ["here"]
    assert await store.redis.smembers(node_key("a", "requests")) == {"here", "newer"}
    assert [entry.request for entry in await journal.entries_on(store, "b", 3)] == ["moved"]
    assert await journal.entries_on(store, "nobody", 1) == []


async def test_an_attempt_is_given_exactly_once_however_many_try(store: Store) -> None:
    """Losers learn what stands, and all agree on it."""
    await journal.open_entry(store, ENTRY, [1], {}, 60)
    results = await asyncio.gather(
        *(journal.assign(store, "r1", 0, f"n{number}", number, f"w{number}") for number in range(25))
    )
    won = [standing for verdict, standing in results if verdict == "assigned"]
    assert len(won) == 1
    assert won[0] is not None
    assert {(s.node, s.epoch, s.attempt) for _, s in results if s} == {(won[0].node, won[0].epoch, 1)}
    assert (await journal.assign(store, "r1", 1, "next", 9, "w"))[0] == "assigned"


async def test_an_assignment_of_a_request_that_ended_is_gone(store: Store) -> None:
    """Its client left; nothing is made up."""
    assert await journal.assign(store, "never", 0, "b", 1, "w") == ("gone", None)
    assert await store.redis.exists(request_key("never")) == 0


async def test_many_assignments_at_once_have_the_results_of_single_ones(store: Store) -> None:
    """In order: given, taken, gone."""
    for request in ("x", "y"):
        await journal.open_entry(store, replace(ENTRY, request=request), [1], {}, 60)
    await journal.assign(store, "y", 0, "c", 5, "gw")
    results = await journal.assign_many(store, [("x", 0, "b", 2), ("y", 0, "b", 2), ("z", 0, "b", 2)], "job:j")
    assert results == [
        ("assigned", Assignment("x", 1, "peer", "b", 2, by="job:j")),
        ("taken", Assignment("y", 1, "peer", "c", 5, by="job:j")),
        ("gone", None),
    ]
    assert await store.redis.smembers(node_key("b", "requests")) == {"x"}
    assert await journal.assign_many(store, [], "job:j") == []


async def test_an_assignment_in_an_inbox_reads_back_as_pushed(store: Store) -> None:
    """Peer and wait alike."""
    orders = [
        Assignment("r1", 1, "peer", "b", 2, "a.7", "job:a.7"),
        Assignment("r2", 0, "wait", "a", 8, "a.7", "job:a.7"),
    ]
    for order in orders:
        await journal.push(store, "gw", order)
    rows = await store.redis.xrange(inbox_key("gw"))
    assert [journal.parse_assignment(fields) for _, fields in rows] == orders
