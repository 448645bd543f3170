"""A stream over scripted engines: ends, budgets, retries, deadlines, without any Redis."""

import asyncio
import time
from dataclasses import replace
from typing import Any, cast

import pytest

from api.context import Context
from api.errors import ApiError
from engines.base import Chunk, EngineBroken, EngineRejected, EngineUnreachable
from recovery.events import Event
from recovery.journal import Assignment
from recovery.registry import Node, NodeState
from tests.rigs.fake_engine import HANG
from tests.unit.api.scripted import REQUEST, FakeClient, end, forget_seeds, make_stream, serve, words


async def test_a_cut_stream_goes_on_with_reduced_budget(context: Context) -> None:
    """The peer gets prompt + delivered ids and the rest of the budget; usage counts the whole."""
    # Given
    engines = serve(context, a=[[*words("ab"), EngineBroken()]], b=[[*words("cd", 2), end(2)]])
    client = FakeClient()
    # When
    await make_stream(context).run(client)
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
    engines = serve(context, a=[[*words("abcd"), EngineBroken()]], b=[])
    client = FakeClient()
    await make_stream(context).run(client)
    assert (client.text, client.reason) == ("abcd", "length")
    assert client.usage["completion_tokens"] == 4
    assert engines["b"].orders == []


async def test_a_death_before_a_stop_lets_the_peer_find_the_stop(context: Context) -> None:
    """A finish reason is never invented: the peer says that the answer had ended."""
    serve(context, a=[[*words("ab"), EngineBroken()]], b=[[end(1, "stop")]])
    client = FakeClient()
    await make_stream(context).run(client)
    assert (client.text, client.reason, client.usage["completion_tokens"]) == ("ab", "stop", 3)


async def test_a_seeded_request_is_replayed_from_its_prompt(context: Context) -> None:
    """Its delivered tokens come again, are verified and not shown."""
    engines = serve(context, a=[[*words("ab"), EngineBroken()]], b=[[*words("abcd"), end(4)]])
    client = FakeClient()
    await make_stream(context, temperature=1, seed=5).run(client)
    assert client.text == "abcd"
    assert client.usage["completion_tokens"] == 4
    assert client.said[-1] == "resumed node=b class=replayed at=2"
    assert list(engines["b"].orders[0].prompt_ids) == [1, 2, 3]


async def test_a_replay_that_differs_is_an_error(context: Context) -> None:
    """What the client has cannot be taken back: better an error than a wrong answer."""
    serve(context, a=[[*words("ab"), EngineBroken()]], b=[[*words("ax"), HANG]])
    client = FakeClient()
    with pytest.raises(ApiError) as caught:
        await make_stream(context, temperature=1).run(client)
    assert caught.value.code == "resume_diverged"
    assert (client.text, client.reason) == ("ab", "")


async def test_two_retries_and_no_more(context: Context) -> None:
    """Three attempts in all, then one error (requirements C3)."""
    engines = serve(
        context, a=[[*words("a"), EngineBroken()]], b=[[EngineBroken()]], c=[[EngineBroken()]], d=[[end(1)]]
    )
    client = FakeClient()
    with pytest.raises(ApiError) as caught:
        await make_stream(context).run(client)
    assert (caught.value.code, caught.value.status) == ("retries_exhausted", 502)
    assert engines["d"].orders == []


async def test_refused_connections_are_no_tries(context: Context) -> None:
    """The engine never saw the request, so it may be tried elsewhere as often as the deadline allows."""
    serve(
        context, **{name: [[EngineUnreachable()]] for name in "abcd"}, e=[[*words("ab"), end(2, "stop")]]
    )  # fmt: skip
    client = FakeClient()
    await make_stream(context).run(client)
    assert (client.text, client.reason) == ("ab", "stop")


async def test_silence_after_the_first_token_ends_an_attempt(context: Context) -> None:
    """Without any sentinel a frozen engine is left all the same."""
    engines = serve(context, a=[[*words("ab"), HANG]], b=[[*words("cd", 2), end(2)]])
    client = FakeClient()
    await make_stream(context).run(client)
    assert client.text == "abcd"
    assert engines["a"].closed == 1


async def test_a_death_notice_cuts_a_silent_engine(context: Context) -> None:
    """The verdict moves the stream at once, long before its own patience with silence ends."""
    serve(context, a=[[*words("ab"), HANG]], b=[[*words("cd", 2), end(2)]])
    client = FakeClient()
    running = asyncio.create_task(make_stream(context).run(client))
    await asyncio.wait_for(client.got.wait(), 5)
    context.table.apply(Event("1-0", "node.dead", {"node": "a", "epoch": "1", "cause": "hang"}))
    await asyncio.wait_for(running, 5)
    assert client.text == "abcd"


async def test_an_early_assignment_moves_a_running_stream(context: Context) -> None:
    """When the recovery moved the request before its death was noticed here, the order is obeyed."""
    engines = serve(
        context, a=[[*words("ab"), HANG]], b=[[end(0)]], c=[[*words("cd", 2), end(2)]]
    )  # fmt: skip
    client, stream = FakeClient(), make_stream(context)
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
    engines = serve(context, a=[[*words("ab"), EngineBroken()]], b=[[*words("cd", 2), end(2)]])
    client, stream = FakeClient(), make_stream(context)
    running = asyncio.create_task(stream.run(client))
    await asyncio.wait_for(client.paused.wait(), 5)
    # When
    stream.offer(Assignment("r1", 0, "wait", "a", 2))
    done, _ = await asyncio.wait([running], timeout=10 * REQUEST["resume_patience_ms"] / 1_000)
    # Then
    assert not done
    assert engines["b"].orders == []
    stream.offer(Assignment("r1", 1, "peer", "b", 1))
    await asyncio.wait_for(running, 5)
    assert client.text == "abcd"


async def test_an_order_to_wait_ends_when_another_node_turns_up(context: Context) -> None:
    """Both nodes were down when it was given: the one that is back first continues the answer."""
    # Given
    engines = serve(context, a=[[*words("ab"), EngineBroken()]], b=[[*words("cd", 2), end(2)]])
    everybody = list(context.table.nodes.values())
    b_is_down = [everybody[0], replace(everybody[1], state=NodeState.WARMING, weight=0.0)]
    context.table.take(b_is_down, time.monotonic())
    client, stream = FakeClient(), make_stream(context)
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
    serve(context, a=[[*words("ab"), EngineBroken()], [EngineUnreachable()], [EngineUnreachable()]] * 3)
    client = FakeClient()
    with pytest.raises(ApiError) as caught:
        await asyncio.wait_for(make_stream(context).run(client), 10)
    assert caught.value.status in (502, 503)
    assert not client.reason


async def test_a_fresh_run_is_allowed_while_the_client_has_nothing(context: Context) -> None:
    """Even what cannot be resumed may be run anew before its first token."""
    serve(context, a=[[EngineBroken()]], b=[[*words("ab"), end(2, "stop")]])
    forget_seeds(context)
    client = FakeClient()
    await make_stream(context, temperature=1, frequency_penalty=1).run(client)
    assert client.text == "ab"


async def test_what_cannot_be_resumed_is_refused_with_an_error(context: Context) -> None:
    """Penalties on an engine that does not repeat itself: nobody may continue it, so it ends in an error."""
    serve(context, a=[[*words("ab"), EngineBroken()]], b=[[*words("cd"), end(2)]])
    forget_seeds(context)
    client, stream = FakeClient(), make_stream(context, temperature=1, frequency_penalty=1)
    assert stream.planned == "refused"
    with pytest.raises(ApiError) as caught:
        await stream.run(client)
    assert caught.value.code == "resume_refused"
    assert (client.text, client.reason) == ("ab", "")


async def test_the_engine_s_own_refusal_comes_through_unchanged(context: Context) -> None:
    """4xx is about the request, not the node: no retry."""
    body = b'{"error":{"message":"no such grammar","code":400}}'
    engines = serve(context, a=[[EngineRejected(400, body)]], b=[[end(1)]])
    with pytest.raises(ApiError) as caught:
        await make_stream(context).run(FakeClient())
    assert (caught.value.status, caught.value.body) == (400, body)
    assert engines["b"].orders == []


async def test_a_full_queue_refuses_with_retry_after(context: Context) -> None:
    """Waiting for a node is bounded in number."""
    context.table.take(
        [Node("a", 1, NodeState.DEAD, 0.0, model="m", engine_url="fake://a", kind="fake")], time.monotonic()
    )
    context.queued = context.settings.limits.queue
    with pytest.raises(ApiError) as caught:
        await make_stream(context).run(FakeClient())
    assert (caught.value.status, caught.value.code) == (503, "queue_full")
    assert "Retry-After" in caught.value.headers


async def test_an_aborted_stream_ends_with_the_error_given(context: Context) -> None:
    """A stopping gateway ends what would not end by itself."""
    serve(context, a=[[*words("ab"), HANG]])
    client, stream = FakeClient(), make_stream(context)
    running = asyncio.create_task(stream.run(client))
    await asyncio.wait_for(client.got.wait(), 5)
    stream.abort(ApiError(503, "stopping", code="gateway_stopping"))
    with pytest.raises(ApiError, match="stopping"):
        await asyncio.wait_for(running, 5)


@pytest.mark.parametrize("done", [0, 1, 20, 49, 50])
async def test_a_resume_asks_for_what_is_left_of_both_budgets(context: Context, done: int) -> None:
    """max_tokens 50, min_tokens 40: the client gets 50, whenever the first node died (case G3-02)."""
    answer = [Chunk(chr(33 + at), (at,)) for at in range(50)]
    engines = serve(context, a=[[*answer[:done], EngineBroken()]], b=[[*answer[done:], end(50 - done)]])
    client = FakeClient()
    await make_stream(context, max_tokens=50, min_tokens=40).run(client)
    assert (client.text, client.reason) == ("".join(chunk.text for chunk in answer), "length")
    assert client.usage == {"prompt_tokens": 3, "completion_tokens": 50, "total_tokens": 53}
    asked = [(order.max_tokens, order.min_tokens) for order in engines["b"].orders]
    assert asked == ([] if done == 50 else [(50 - done, max(40 - done, 0))])
    assert [list(order.prompt_ids) for order in engines["b"].orders] == [[1, 2, 3, *range(done)]][: len(asked)]


async def test_a_penalised_request_is_replayed_with_whole_budgets(context: Context) -> None:
    """Its penalties count generated tokens: those delivered are generated again, not shown again (case G3-02)."""
    engines = serve(context, a=[[*words("ab"), EngineBroken()]], b=[[*words("abcd"), end(4)]])
    client = FakeClient()
    await make_stream(context, presence_penalty=1.0, min_tokens=3).run(client)
    assert (client.text, client.usage["completion_tokens"]) == ("abcd", 4)
    [order] = engines["b"].orders
    assert (list(order.prompt_ids), order.max_tokens, order.min_tokens) == ([1, 2, 3], 4, 3)


async def test_refusals_say_nothing_about_nodes_and_hide_no_broken_one(context: Context) -> None:
    """Twenty 400s leave all three nodes in use; between failures they heal nothing (case G4-01)."""
    refused = [[EngineRejected(400, b"{}")]] * 20
    good = [[*words("ab"), end(2, "stop")]]
    engines = serve(context, a=[*refused, [EngineBroken()]], b=[*good, *refused], c=[])
    for _ in range(20):
        with pytest.raises(ApiError) as caught:
            await make_stream(context).run(FakeClient())
        assert caught.value.status == 400
    assert {node.id for node in context.table.usable("m")} == {"a", "b", "c"}
    # When node a breaks, its stream goes on at b
    client = FakeClient()
    await make_stream(context).run(client)
    assert client.text == "ab"
    # Then a refusal by another node leaves its standing as it is
    with pytest.raises(ApiError):
        await make_stream(context).run(FakeClient())
    assert "a" not in {node.id for node in context.table.usable("m")}
    assert len(engines["a"].orders) == 21
