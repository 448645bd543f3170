"""What a gateway makes of nodes that answer with errors, and of nodes that leave, by its streams alone."""

import asyncio
import time
from dataclasses import replace

import pytest

from api.context import Context
from api.errors import ApiError
from engines.base import Chunk, EngineBroken, EngineRejected
from recovery.events import Event
from recovery.journal import Assignment
from recovery.registry import NodeState
from tests.rigs.fake_engine import HANG, FakeEngine
from tests.unit.api.scripted import FakeClient, end, make_stream, serve, words


async def test_a_node_that_fails_every_valid_request_is_found_between_refusals(context: Context) -> None:
    """Each is served by its peer, so the fault is the node's; 400s in between are neither failure nor success.

    Three in a row, and it takes nothing more; a 400 while it is on trial again heals nothing (case G4-01).
    """
    # Given
    failure, refused, good = (
        [EngineRejected(500, b"{}")],
        [EngineRejected(400, b"{}")],
        [*words("ab"), end(2, "stop")],
    )
    engines = serve(context, a=[failure, refused] * 4, b=[good] * 10, c=[])
    # When
    for request in range(3):
        assert "a" in _usable(context), request
        client = FakeClient()
        await make_stream(context).run(client)
        assert client.text == "ab"
        if request < 2:
            with pytest.raises(ApiError) as caught:
                await make_stream(context).run(FakeClient())
            assert caught.value.status == 400
    # Then it gets nothing while it is doubted
    assert _usable(context) == {"b", "c"}
    assert len(engines["a"].orders) == 5
    await make_stream(context).run(FakeClient())
    assert len(engines["a"].orders) == 5
    # And on trial again, a refusal changes nothing: the next failure is enough
    context.table._doubts._until.clear()
    with pytest.raises(ApiError):
        await make_stream(context).run(FakeClient())
    assert "a" in _usable(context)
    await make_stream(context).run(FakeClient())
    assert _usable(context) == {"b", "c"}


async def test_a_request_that_fails_everywhere_is_held_against_nobody(context: Context) -> None:
    """What every node answers with a 500 is the request's own fault, however often it is sent (case G4-01)."""
    failures = [[EngineRejected(500, b"{}")]] * 20
    serve(context, a=list(failures), b=list(failures), c=list(failures))
    for _ in range(5):
        with pytest.raises(ApiError) as caught:
            await make_stream(context).run(FakeClient())
        assert caught.value.code == "retries_exhausted"
    assert _usable(context) == {"a", "b", "c"}


async def test_one_answer_forgives_a_node_its_failures(context: Context) -> None:
    """Only failures in a row tell of a broken node."""
    failure, good = [EngineRejected(500, b"{}")], [*words("ab"), end(2, "stop")]
    serve(context, a=[failure, failure, good, failure, failure], b=[good] * 4)
    for _ in range(5):
        await make_stream(context).run(FakeClient())
    assert _usable(context) == {"a", "b"}


async def test_a_node_that_left_since_it_was_chosen_gets_no_request(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between choice and dispatch lie waits; what is sent to a leaving node would only have to move (case G4-09)."""
    engines = serve(context, a=[[*words("xx"), end(2)]], b=[[*words("ab"), end(2, "stop")]])
    leaving = Event("1-0", "node.state", {"node": "a", "epoch": "1", "state": "DRAINING", "weight": "0"})

    async def tokenize(engine: FakeEngine, text: str, timeout: float) -> list[int]:
        context.table.apply(leaving)
        return [1, 2, 3]

    monkeypatch.setattr(FakeEngine, "tokenize", tokenize)
    client = FakeClient()
    await asyncio.wait_for(make_stream(context).run(client), 5)
    assert client.text == "ab"
    assert engines["a"].orders == []


async def test_streams_cut_by_nodes_that_leave_in_good_order_cost_no_retry(context: Context) -> None:
    """A rolling restart of many nodes under one long answer: it is nobody's failure (case G4-09)."""
    names = "abcdef"
    letters = {name: [Chunk(name, (at,)), HANG] for at, name in enumerate(names[:-1])}
    engines = serve(context, **{name: [script] for name, script in letters.items()}, f=[[Chunk("f", (5,)), end(1)]])
    client = FakeClient()
    running = asyncio.create_task(make_stream(context, max_tokens=6).run(client))
    for at, name in enumerate(names[:-1]):
        await asyncio.wait_for(client.got.wait(), 5)
        client.got.clear()
        fields = {"node": name, "epoch": "1", "state": "STOPPED", "weight": "0"}
        context.table.apply(Event("1-0", "node.state", fields))
        for tether in list(context.table._tethers[name]):
            assert tether._scope is not None
            tether._scope.reschedule(asyncio.get_running_loop().time())  # its engine says nothing more
        assert at < len(names)
    await asyncio.wait_for(running, 5)
    assert client.text == names
    assert [len(engine.orders) for engine in engines.values()] == [1] * len(names)
    assert context.table._doubts._until == {}


async def test_an_order_to_go_to_a_node_that_left_is_not_obeyed(context: Context) -> None:
    """The recovery chose it a moment before it left: the stream goes elsewhere (case G4-09)."""
    engines = serve(
        context, a=[[*words("ab"), EngineBroken()]], b=[[*words("xx"), end(2)]], c=[[*words("cd", 2), end(2)]]
    )  # fmt: skip
    client, stream = FakeClient(), make_stream(context)
    leaving = Event("1-0", "node.state", {"node": "b", "epoch": "1", "state": "WARMING", "weight": "0"})
    context.table.apply(leaving)
    running = asyncio.create_task(stream.run(client))
    await asyncio.wait_for(client.paused.wait(), 5)
    stream.offer(Assignment("r1", 1, "peer", "b", 1))
    await asyncio.wait_for(running, 5)
    assert client.text == "abcd"
    assert engines["b"].orders == []


async def test_an_order_that_comes_before_the_news_it_follows_from_is_obeyed(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node has just warmed up, and the inbox was faster than the event: the registry knows."""
    engines = serve(
        context, a=[[*words("ab"), EngineBroken()]], b=[[*words("cd", 2), end(2)]], c=[[*words("xx"), end(2)]]
    )  # fmt: skip
    everybody = list(context.table.nodes.values())
    warming = [replace(node, state=NodeState.WARMING) if node.id == "b" else node for node in everybody]
    context.table.take(warming, time.monotonic())
    context.table._engines = {f"fake://{name}": engine for name, engine in engines.items()}

    async def refresh() -> None:
        context.table.take(everybody, time.monotonic())

    monkeypatch.setattr(context.table, "refresh", refresh)
    client, stream = FakeClient(), make_stream(context)
    running = asyncio.create_task(stream.run(client))
    await asyncio.wait_for(client.paused.wait(), 5)
    stream.offer(Assignment("r1", 1, "peer", "b", 1))
    await asyncio.wait_for(running, 5)
    assert client.text == "abcd"
    assert (len(engines["b"].orders), len(engines["c"].orders)) == (1, 0)


def _usable(context: Context) -> set[str]:
    return {node.id for node in context.table.usable("m")}
