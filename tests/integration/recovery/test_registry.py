"""The registry on a real server: writes under an epoch, states with conditions, events for everybody."""

import pytest

from recovery import events, leases, registry
from recovery.errors import StaleEpoch, UnknownNode
from recovery.events import Kind
from recovery.registry import NodeState
from recovery.store import Store


async def test_a_node_reads_back_as_it_was_written(store: Store) -> None:
    """Types included; unknown fields are kept apart."""
    epoch = (await leases.boot(store, "a", "h", 0, 0, 5_000)).epoch
    written: dict[str, str | int | float] = {
        "state": "ALIVE", "weight": 0.5, "free_ratio": 0.25, "running": 3, "slots": 4, "invariant": True,
        "deterministic_seed": False, "model": "m", "engine_url": "http://e", "colour": "blue",
    }  # fmt: skip
    await registry.register(store, "a", epoch, written)
    node = await registry.get(store, "a")
    assert {name: getattr(node, name) for name in written if name != "colour"} == {
        name: value for name, value in written.items() if name != "colour"
    }
    assert node.extra == {"colour": "blue"}
    assert await registry.all_nodes(store) == [node]


async def test_an_unknown_node_is_said_to_be_unknown(store: Store) -> None:
    """By its name."""
    with pytest.raises(UnknownNode, match="zzz"):
        await registry.get(store, "zzz")
    assert await registry.all_nodes(store) == []


async def test_a_state_is_changed_only_from_where_the_caller_expects_it(store: Store) -> None:
    """Two judges of one node do not overwrite each other's verdict."""
    epoch = (await leases.boot(store, "a", "h", 0, 0, 5_000)).epoch
    await registry.register(store, "a", epoch, {"state": "ALIVE", "weight": 1.0})
    assert not await registry.set_state(store, "a", epoch, NodeState.ALIVE, only_in=(NodeState.PROBATION,))
    assert await registry.set_state(
        store, "a", epoch, NodeState.SUSPECT, weight=0.2, only_in=(NodeState.ALIVE, NodeState.SUSPECT)
    )
    node = await registry.get(store, "a")
    assert (node.state, node.weight) == (NodeState.SUSPECT, 0.2)


async def test_a_write_under_any_other_epoch_is_refused(store: Store) -> None:
    """Lower or higher."""
    epoch = (await leases.boot(store, "a", "h", 4, 0, 5_000)).epoch
    for wrong in (epoch - 1, epoch + 1):
        with pytest.raises(StaleEpoch) as refused:
            await registry.write(store, "a", wrong, {"weight": 1.0})
        assert refused.value.current == epoch


async def test_changes_are_told_on_the_events_stream_in_order(store: Store) -> None:
    """A reader that knows its place misses nothing; a refused change is not told."""
    epoch = (await leases.boot(store, "a", "h", 0, 0, 5_000)).epoch
    assert await events.last_id(store) == "0-0"
    await registry.register(store, "a", epoch, {"state": "STARTING"})
    place = await events.last_id(store)
    await registry.set_state(store, "a", epoch, NodeState.ALIVE, weight=1.0)
    await registry.set_state(store, "a", epoch, NodeState.DEAD, only_in=(NodeState.SUSPECT,))
    await events.publish(store, Kind.NODE_DEAD, {"node": "a", "epoch": epoch, "cause": "hang", "evidence": "e"})
    async with store.reader() as reader:
        first, second = await events.read(reader, place, block_ms=50)
        assert await events.read(reader, second.id, block_ms=50) == []
    assert (first.kind, first.node, first.epoch, first.fields["state"]) == (Kind.NODE_STATE, "a", epoch, "ALIVE")
    assert (second.kind, second.fields["cause"]) == (Kind.NODE_DEAD, "hang")
