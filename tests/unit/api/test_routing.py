"""The routing table: what events and this gateway's own experience do to it."""

import asyncio
import time
from typing import Any, cast

import pytest

from api.routing import RoutingTable
from api.tether import Severed
from recovery.config import Settings
from recovery.events import Event
from recovery.registry import SERVING, Node, NodeState


def _node(name: str, epoch: int = 1, **fields: Any) -> Node:
    return Node(
        name, epoch, **{"state": NodeState.ALIVE, "weight": 1.0, "model": "m", "engine_url": "http://x", **fields}
    )


def _table(*nodes: Node) -> RoutingTable:
    table = RoutingTable(Settings(), cast("Any", None), cast("Any", None))
    table.take(nodes, time.monotonic())
    return table


def _dead(node: str, epoch: int) -> Event:
    return Event("1-0", "node.dead", {"node": node, "epoch": str(epoch), "cause": "process"})


async def _for_ever() -> None:
    await asyncio.sleep(3_600)


async def test_a_death_cuts_a_silent_read_at_once_and_takes_the_weight() -> None:
    """A frozen engine's socket says nothing; the event must be enough (requirements B5)."""
    # Given
    table = _table(_node("a"), _node("b"))
    with table.tied(table.nodes["a"]) as tied, table.tied(table.nodes["b"]) as other:
        reading = asyncio.create_task(tied.hold(_for_ever, 60))
        await asyncio.sleep(0)
        # When
        table.apply(_dead("a", 1))
        # Then
        with pytest.raises(Severed, match="process"):
            await asyncio.wait_for(reading, 1)
        assert not other.cause
    assert [table.choose("m", ()) for _ in range(5)] == [table.nodes["b"]] * 5


async def test_a_death_of_an_old_epoch_hurts_nothing_new() -> None:
    """Events may come late; the epoch says whom they mean."""
    table = _table(_node("a", 2))
    with table.tied(table.nodes["a"]) as tied:
        table.apply(_dead("a", 1))
        assert not tied.cause
    assert table.choose("m") == table.nodes["a"]


async def test_a_registry_read_older_than_the_verdict_does_not_revive() -> None:
    """A refresh under way while the event came must not give the weight back."""
    table = _table(_node("a"))
    table.apply(_dead("a", 1))
    table.take([_node("a")], time.monotonic())
    assert table.choose("m") is None
    table.take([_node("a", 2)], time.monotonic())
    assert table.choose("m") == table.nodes["a"]


def _state(node: str, epoch: int, state: NodeState, weight: float = 0.0) -> Event:
    fields = {"node": node, "epoch": str(epoch), "state": state.value, "weight": str(weight), "why": "", "by": "test"}
    return Event("1-0", "node.state", fields)


@pytest.mark.parametrize("state", sorted(set(NodeState) - SERVING - {NodeState.PROBATION}))
async def test_a_node_in_such_a_state_is_never_sent_anything(state: NodeState) -> None:
    """Whatever weight comes with it, and though it is the only node (case G4-09)."""
    table = _table(_node("a"))
    before = table.nodes["a"]
    assert table.open_to(before)
    table.apply(_state("a", 1, state, 1.0))
    assert table.choose("m") is None
    assert not table.open_to(before)


async def test_a_weight_is_obeyed_in_the_loop_turn_its_event_is_read_in() -> None:
    """Requirements B5, B6: nothing is awaited in between; the registry need not be read for a mere step."""
    table = _table(_node("a"), _node("b"))
    assert table.apply(_state("a", 1, NodeState.PROBATION))
    assert {_chosen(table) for _ in range(200)} == {"b"}
    assert not table.apply(_state("a", 1, NodeState.PROBATION, 0.5))
    assert {_chosen(table) for _ in range(200)} == {"a", "b"}
    assert not table.apply(_state("a", 1, NodeState.PROBATION, 0.0))
    assert {_chosen(table) for _ in range(200)} == {"b"}


def _chosen(table: RoutingTable) -> str:
    node = table.choose("m")
    assert node is not None
    return node.id


async def test_a_registry_read_that_began_before_an_event_does_not_undo_it() -> None:
    """Its picture is older; one that began afterwards counts, and one overtaken by a later read does not."""
    table = _table(_node("a"))
    began = time.monotonic()
    table.apply(_state("a", 1, NodeState.DRAINING))
    table.take([_node("a")], began)
    assert table.choose("m") is None
    table.take([_node("a")], time.monotonic())
    assert table.choose("m") is not None
    table.take([], began)
    assert table.choose("m") is not None


async def test_an_event_of_an_epoch_not_known_yet_asks_for_the_registry() -> None:
    """The picture of the old epoch stays as it is until then."""
    table = _table(_node("a"))
    assert table.apply(_state("a", 2, NodeState.PROBATION))
    assert table.nodes["a"].epoch == 1
    assert table.apply(_state("zz", 1, NodeState.ALIVE, 1.0))
    assert not table.apply(_state("a", 0, NodeState.DRAINING))


async def test_a_new_epoch_cuts_what_still_reads_the_old_one() -> None:
    """Whatever a fenced engine says is refused (design, section 6)."""
    table = _table(_node("a"))
    with table.tied(table.nodes["a"]) as tied:
        table.take([_node("a", 2)], time.monotonic())
        assert tied.cause == "fenced"


async def test_draining_and_stopping_cut_nothing() -> None:
    """An orderly end lets running streams go on."""
    table = _table(_node("a"))
    with table.tied(table.nodes["a"]) as tied:
        for state in ("DRAINING", "STOPPED"):
            fields = {"node": "a", "epoch": "1", "state": state, "weight": "0"}
            assert table.apply(Event("1-0", "node.state", fields))
        assert not tied.cause
    assert table.choose("m") is None


async def test_a_suspect_is_avoided_for_a_while_and_wakes_the_parked_afterwards() -> None:
    """What this gateway saw failing takes nothing, even as the only node; but not for ever."""
    table = _table(_node("a"))
    table.suspect(table.nodes["a"])
    assert table.choose("m") is None
    wake = asyncio.Event()
    with table.parked(wake):
        await asyncio.wait_for(wake.wait(), 5)
    assert table.choose("m") == table.nodes["a"]


async def test_a_full_node_takes_no_more() -> None:
    """Connections to one engine are bounded."""
    settings = Settings(limits=cast("Any", {"connections_per_node": 1}))
    table = RoutingTable(settings, cast("Any", None), cast("Any", None))
    table.take([_node("a")], time.monotonic())
    with table.tied(table.nodes["a"]):
        assert table.choose("m") is None
    assert table.choose("m") is not None


async def test_a_cut_tie_stays_cut_and_silence_cuts_too() -> None:
    """Both end a read as Severed, with the reason."""
    table = _table(_node("a"))
    with table.tied(table.nodes["a"]) as tied:
        with pytest.raises(Severed, match=r"silent for 0\.01 s"):
            await tied.hold(_for_ever, 0.01)
        tied.cut("dead")
        with pytest.raises(Severed, match="dead"):
            await tied.hold(_for_ever, 60)


async def test_a_tie_may_be_cut_in_the_very_turn_its_read_runs_out_of_time() -> None:
    """The verdict often comes just when the silence has lasted long enough: no error, and the verdict is the reason."""
    table = _table(_node("a"))
    with table.tied(table.nodes["a"]) as tied:
        reading = asyncio.create_task(tied.hold(_for_ever, 0))
        await asyncio.sleep(0)
        # Queued behind the timer's own callback
        applied = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(lambda: applied.set_result(table.apply(_dead("a", 1))))
        with pytest.raises(Severed, match="process"):
            await asyncio.wait_for(reading, 1)
        await asyncio.wait_for(applied, 1)
