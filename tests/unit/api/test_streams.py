"""A stream over scripted engines: ends, budgets, retries, deadlines, without any Redis."""

import asyncio
import time
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any, cast

import orjson
import pytest

from api.context import Context
from api.errors import ApiError
from api.journaling import JournalWriter
from api.metrics import Metrics
from api.requests import parse
from api.routing import RoutingTable
from api.streams import Piece, Stream
from engines.base import Chunk, EngineBroken, EngineRejected, EngineUnreachable
from recovery.config import Settings
from recovery.events import Event
from recovery.journal import Assignment
from recovery.registry import Node, NodeState
from recovery.store import Store
from tests.rigs.fake_engine import HANG, FakeEngine

_REQUEST = {
    "resume_patience_ms": 20,
    "resume_deadline_s": 3,
    "silence_timeout_s": 0.3,
    "first_token_timeout_s": 0.5,
}


class _FakeClient:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.text = ""
        self.usage: dict[str, int] = {}
        self.reason = ""
        self.got = asyncio.Event()
        self.paused = asyncio.Event()

    async def deliver(self, pieces: list[Piece]) -> None:
        self.text += "".join(text for text, _ids in pieces)
        self.got.set()

    async def pause(self) -> None:
        self.said.append("pause")
        self.paused.set()

    async def resumed(self, note: str) -> None:
        self.said.append(note.rsplit(" gap_ms", 1)[0])

    async def finish(self, reason: str, usage: dict[str, int]) -> None:
        assert not self.reason
        self.reason, self.usage = reason, usage


@pytest.fixture
async def context() -> AsyncGenerator[Context]:
    """A gateway's parts with Redis away."""
    settings = Settings(request=cast("Any", _REQUEST))
    store = Store("redis://127.0.0.1:1/0", 200)
    table = RoutingTable(settings, store, cast("Any", None))
    metrics = Metrics()
    context = Context("g", settings, store, table, JournalWriter(store, "g", settings.request, metrics), metrics)
    try:
        yield context
    finally:
        await context.journal.aclose()
        await store.aclose()


def _serve(context: Context, **scripts: Any) -> dict[str, FakeEngine]:
    """Put one fake node per name into the table, preferred in alphabetical order."""
    engines, nodes = {}, []
    for name, script in scripts.items():
        url = f"fake://{name}"
        nodes.append(
            Node(
                name, 1, NodeState.ALIVE, 1.0, engine_url=url, kind="fake", model="m", identity="same", context=100,
                slots=4, invariant=True, deterministic_seed=True,
            )
        )  # fmt: skip
        engines[name] = FakeEngine(script)
    context.table.take(nodes, time.monotonic())
    context.table._engines = {f"fake://{name}": cast("Any", engine) for name, engine in engines.items()}
    return engines


def _forget_seeds(context: Context) -> None:
    """Make the engines such as do not repeat a seeded run."""
    nodes = [replace(node, deterministic_seed=False) for node in context.table.nodes.values()]
    context.table.take(nodes, time.monotonic())


def _stream(context: Context, **fields: Any) -> Stream:
    body = {"model": "m", "prompt": "x", "temperature": 0, "max_tokens": 4, **fields}
    return Stream(context, parse("completion", orjson.dumps(body)), "r1")


def _words(text: str, first: int = 0) -> list[Chunk]:
    return [Chunk(letter, (first + at,)) for at, letter in enumerate(text)]


def _end(generated: int, reason: Any = "length") -> Chunk:
    return Chunk("", (), finish=reason, generated=generated)


async def test_a_cut_stream_goes_on_with_reduced_budget(context: Context) -> None:
    """The peer gets prompt + delivered ids and the rest of the budget; usage counts the whole."""
    # Given
    engines = _serve(context, a=[[*_words("ab"), EngineBroken()]], b=[[*_words("cd", 2), _end(2)]])
    client = _FakeClient()
    # When
    await _stream(context).run(client)
    # Then
    assert (client.text, client.reason) == ("abcd", "length")
    assert client.usage == {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}
    assert client.said == ["pause", "resumed node=b class=exact at=2"]
    order = engines["b"].orders[0]
    assert (list(order.prompt_ids), order.max_tokens) == ([1, 2, 3, 0, 1], 2)
    assert context.streams == {}
    assert context.table.inflight() == {}


async def test_a_death_between_last_token_and_end_generates_nothing_more(context: Context) -> None:
    """All of max_tokens is delivered: the gateway finishes it itself (the engine refuses max_tokens 0)."""
    engines = _serve(context, a=[[*_words("abcd"), EngineBroken()]], b=[])
    client = _FakeClient()
    await _stream(context).run(client)
    assert (client.text, client.reason) == ("abcd", "length")
    assert client.usage["completion_tokens"] == 4
    assert engines["b"].orders == []


async def test_a_death_before_a_stop_lets_the_peer_find_the_stop(context: Context) -> None:
    """A finish reason is never invented: the peer says that the answer had ended."""
    _serve(context, a=[[*_words("ab"), EngineBroken()]], b=[[_end(1, "stop")]])
    client = _FakeClient()
    await _stream(context).run(client)
    assert (client.text, client.reason, client.usage["completion_tokens"]) == ("ab", "stop", 3)


async def test_a_seeded_request_is_replayed_from_its_prompt(context: Context) -> None:
    """Its delivered tokens come again, are verified and not shown."""
    engines = _serve(context, a=[[*_words("ab"), EngineBroken()]], b=[[*_words("abcd"), _end(4)]])
    client = _FakeClient()
    await _stream(context, temperature=1, seed=5).run(client)
    assert client.text == "abcd"
    assert client.usage["completion_tokens"] == 4
    assert client.said[-1] == "resumed node=b class=replayed at=2"
    assert list(engines["b"].orders[0].prompt_ids) == [1, 2, 3]


async def test_a_replay_that_differs_is_an_error(context: Context) -> None:
    """What the client has cannot be taken back: better an error than a wrong answer."""
    _serve(context, a=[[*_words("ab"), EngineBroken()]], b=[[*_words("ax"), HANG]])
    client = _FakeClient()
    with pytest.raises(ApiError) as caught:
        await _stream(context, temperature=1).run(client)
    assert caught.value.code == "resume_diverged"
    assert (client.text, client.reason) == ("ab", "")


async def test_two_retries_and_no_more(context: Context) -> None:
    """Three attempts in all, then one error (requirements C3)."""
    engines = _serve(
        context, a=[[*_words("a"), EngineBroken()]], b=[[EngineBroken()]], c=[[EngineBroken()]], d=[[_end(1)]]
    )
    client = _FakeClient()
    with pytest.raises(ApiError) as caught:
        await _stream(context).run(client)
    assert (caught.value.code, caught.value.status) == ("retries_exhausted", 502)
    assert engines["d"].orders == []


async def test_refused_connections_are_no_tries(context: Context) -> None:
    """The engine never saw the request, so it may be tried elsewhere as often as the deadline allows."""
    _serve(
        context, **{name: [[EngineUnreachable()]] for name in "abcd"}, e=[[*_words("ab"), _end(2, "stop")]]
    )  # fmt: skip
    client = _FakeClient()
    await _stream(context).run(client)
    assert (client.text, client.reason) == ("ab", "stop")


async def test_silence_after_the_first_token_ends_an_attempt(context: Context) -> None:
    """Without any sentinel a frozen engine is left all the same."""
    engines = _serve(context, a=[[*_words("ab"), HANG]], b=[[*_words("cd", 2), _end(2)]])
    client = _FakeClient()
    await _stream(context).run(client)
    assert client.text == "abcd"
    assert engines["a"].closed == 1


async def test_a_death_notice_cuts_a_silent_engine(context: Context) -> None:
    """The verdict moves the stream at once, long before its own patience with silence ends."""
    _serve(context, a=[[*_words("ab"), HANG]], b=[[*_words("cd", 2), _end(2)]])
    client = _FakeClient()
    running = asyncio.create_task(_stream(context).run(client))
    await asyncio.wait_for(client.got.wait(), 5)
    context.table.apply(Event("1-0", "node.dead", {"node": "a", "epoch": "1", "cause": "hang"}))
    await asyncio.wait_for(running, 5)
    assert client.text == "abcd"


async def test_an_early_assignment_moves_a_running_stream(context: Context) -> None:
    """When the recovery moved the request before its death was noticed here, the order is obeyed."""
    engines = _serve(
        context, a=[[*_words("ab"), HANG]], b=[[_end(0)]], c=[[*_words("cd", 2), _end(2)]]
    )  # fmt: skip
    client, stream = _FakeClient(), _stream(context)
    running = asyncio.create_task(stream.run(client))
    await asyncio.wait_for(client.got.wait(), 5)
    stream.offer(Assignment("r1", 7, "peer", "b", 1))  # not for the attempt that comes next
    stream.offer(Assignment("r1", 1, "peer", "c", 1))
    await asyncio.wait_for(running, 5)
    assert client.text == "abcd"
    assert engines["b"].orders == []


async def test_an_order_to_wait_is_obeyed_although_a_peer_is_free(context: Context) -> None:
    """The recovery chose to wait for the node; its second wave ends the wait, not the gateway's patience."""
    # Given
    engines = _serve(context, a=[[*_words("ab"), EngineBroken()]], b=[[*_words("cd", 2), _end(2)]])
    client, stream = _FakeClient(), _stream(context)
    running = asyncio.create_task(stream.run(client))
    await asyncio.wait_for(client.paused.wait(), 5)
    # When
    stream.offer(Assignment("r1", 0, "wait", "a", 2))
    done, _ = await asyncio.wait([running], timeout=10 * _REQUEST["resume_patience_ms"] / 1_000)
    # Then
    assert not done
    assert engines["b"].orders == []
    stream.offer(Assignment("r1", 1, "peer", "b", 1))
    await asyncio.wait_for(running, 5)
    assert client.text == "abcd"


async def test_an_order_to_wait_ends_when_another_node_turns_up(context: Context) -> None:
    """Both nodes were down when it was given: the one that is back first continues the answer."""
    # Given
    engines = _serve(context, a=[[*_words("ab"), EngineBroken()]], b=[[*_words("cd", 2), _end(2)]])
    everybody = list(context.table.nodes.values())
    b_is_down = [everybody[0], replace(everybody[1], state=NodeState.WARMING, weight=0.0)]
    context.table.take(b_is_down, time.monotonic())
    client, stream = _FakeClient(), _stream(context)
    running = asyncio.create_task(stream.run(client))
    await asyncio.wait_for(client.paused.wait(), 5)
    stream.offer(Assignment("r1", 0, "wait", "a", 2))
    done, _ = await asyncio.wait([running], timeout=0.1)
    assert not done
    # When
    context.table.take(everybody, time.monotonic())
    context.table._engines = {f"fake://{name}": cast("Any", engine) for name, engine in engines.items()}
    # Then
    await asyncio.wait_for(running, 2)
    assert client.text == "abcd"
    assert len(engines["b"].orders) == 1


async def test_a_pause_has_a_deadline(context: Context) -> None:
    """Nobody left: pings, then one error; never a hang without end."""
    _serve(context, a=[[*_words("ab"), EngineBroken()], [EngineUnreachable()], [EngineUnreachable()]] * 3)
    client = _FakeClient()
    with pytest.raises(ApiError) as caught:
        await asyncio.wait_for(_stream(context).run(client), 10)
    assert caught.value.status in (502, 503)
    assert not client.reason


async def test_a_fresh_run_is_allowed_while_the_client_has_nothing(context: Context) -> None:
    """Even what cannot be resumed may be run anew before its first token."""
    _serve(context, a=[[EngineBroken()]], b=[[*_words("ab"), _end(2, "stop")]])
    _forget_seeds(context)
    client = _FakeClient()
    await _stream(context, temperature=1, frequency_penalty=1).run(client)
    assert client.text == "ab"


async def test_what_cannot_be_resumed_is_refused_with_an_error(context: Context) -> None:
    """Penalties on an engine that does not repeat itself: nobody may continue it, so it ends in an error."""
    _serve(context, a=[[*_words("ab"), EngineBroken()]], b=[[*_words("cd"), _end(2)]])
    _forget_seeds(context)
    client, stream = _FakeClient(), _stream(context, temperature=1, frequency_penalty=1)
    assert stream.planned == "refused"
    with pytest.raises(ApiError) as caught:
        await stream.run(client)
    assert caught.value.code == "resume_refused"
    assert (client.text, client.reason) == ("ab", "")


async def test_the_engine_s_own_refusal_comes_through_unchanged(context: Context) -> None:
    """4xx is about the request, not the node: no retry."""
    body = b'{"error":{"message":"no such grammar","code":400}}'
    engines = _serve(context, a=[[EngineRejected(400, body)]], b=[[_end(1)]])
    with pytest.raises(ApiError) as caught:
        await _stream(context).run(_FakeClient())
    assert (caught.value.status, caught.value.body) == (400, body)
    assert engines["b"].orders == []


async def test_a_full_queue_refuses_with_retry_after(context: Context) -> None:
    """Waiting for a node is bounded in number."""
    context.table.take(
        [Node("a", 1, NodeState.DEAD, 0.0, model="m", engine_url="fake://a", kind="fake")], time.monotonic()
    )
    context.queued = context.settings.limits.queue
    with pytest.raises(ApiError) as caught:
        await _stream(context).run(_FakeClient())
    assert (caught.value.status, caught.value.code) == (503, "queue_full")
    assert "Retry-After" in caught.value.headers


async def test_an_aborted_stream_ends_with_the_error_given(context: Context) -> None:
    """A stopping gateway ends what would not end by itself."""
    _serve(context, a=[[*_words("ab"), HANG]])
    client, stream = _FakeClient(), _stream(context)
    running = asyncio.create_task(stream.run(client))
    await asyncio.wait_for(client.got.wait(), 5)
    stream.abort(ApiError(503, "stopping", code="gateway_stopping"))
    with pytest.raises(ApiError, match="stopping"):
        await asyncio.wait_for(running, 5)


@pytest.mark.parametrize("done", [0, 1, 20, 49, 50])
async def test_a_resume_asks_for_what_is_left_of_both_budgets(context: Context, done: int) -> None:
    """max_tokens 50, min_tokens 40: the client gets 50, whenever the first node died (case G3-02)."""
    answer = [Chunk(chr(33 + at), (at,)) for at in range(50)]
    engines = _serve(context, a=[[*answer[:done], EngineBroken()]], b=[[*answer[done:], _end(50 - done)]])
    client = _FakeClient()
    await _stream(context, max_tokens=50, min_tokens=40).run(client)
    assert (client.text, client.reason) == ("".join(chunk.text for chunk in answer), "length")
    assert client.usage == {"prompt_tokens": 3, "completion_tokens": 50, "total_tokens": 53}
    asked = [(order.max_tokens, order.min_tokens) for order in engines["b"].orders]
    assert asked == ([] if done == 50 else [(50 - done, max(40 - done, 0))])
    assert [list(order.prompt_ids) for order in engines["b"].orders] == [[1, 2, 3, *range(done)]][: len(asked)]


async def test_a_penalised_request_is_replayed_with_whole_budgets(context: Context) -> None:
    """Its penalties count generated tokens: those delivered are generated again, not shown again (case G3-02)."""
    engines = _serve(context, a=[[*_words("ab"), EngineBroken()]], b=[[*_words("abcd"), _end(4)]])
    client = _FakeClient()
    await _stream(context, presence_penalty=1.0, min_tokens=3).run(client)
    assert (client.text, client.usage["completion_tokens"]) == ("abcd", 4)
    [order] = engines["b"].orders
    assert (list(order.prompt_ids), order.max_tokens, order.min_tokens) == ([1, 2, 3], 4, 3)


async def test_refusals_say_nothing_about_nodes_and_hide_no_broken_one(context: Context) -> None:
    """Twenty 400s leave all three nodes in use; between failures they heal nothing (case G4-01)."""
    refused = [[EngineRejected(400, b"{}")]] * 20
    good = [[*_words("ab"), _end(2, "stop")]]
    engines = _serve(context, a=[*refused, [EngineBroken()]], b=[*good, *refused], c=[])
    for _ in range(20):
        with pytest.raises(ApiError) as caught:
            await _stream(context).run(_FakeClient())
        assert caught.value.status == 400
    assert {node.id for node in context.table.usable("m")} == {"a", "b", "c"}
    # When node a breaks, its stream goes on at b
    client = _FakeClient()
    await _stream(context).run(client)
    assert client.text == "ab"
    # Then a refusal by another node leaves a's standing as it is
    with pytest.raises(ApiError):
        await _stream(context).run(_FakeClient())
    assert "a" not in {node.id for node in context.table.usable("m")}
    assert len(engines["a"].orders) == 21
