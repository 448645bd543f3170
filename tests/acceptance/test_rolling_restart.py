"""A rolling restart on a whole stack with real engines: drained or not, no client sees anything of it (case G4-09)."""

import asyncio
import os
import signal
import time
from dataclasses import dataclass, field
from functools import partial

import pytest

from cli.answers import Answer, stream_answer
from cli.watching import wait_for_nodes
from recovery import events, policy, registry
from recovery.events import Event
from recovery.registry import Node, NodeState
from recovery.store import Store
from tests.acceptance.test_faults import PROMPTS, assert_whole
from tests.rigs.stack import RunningStack, until

pytestmark = [pytest.mark.acceptance, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(240)]

_LENGTHS = (60, 30, 6)
"""Tokens of each client's answers: long ones to be cut, short ones to be asked for all the time."""
_SETTLE_MS = 1_000
"""From a node's leaving on, for the gateway to have heard of it: on a loaded machine, far above what it needs."""


@dataclass
class _Served:
    """One answer, and when it was asked for and opened (ms since 1970)."""

    answer: Answer
    asked_ms: float = field(default_factory=lambda: time.time() * 1_000)
    opened_ms: float = 0.0


async def test_nodes_leave_and_come_back_under_requests_and_every_answer_is_whole(stack: RunningStack) -> None:
    """Each node in turn, one drained first and one not: SIGTERM to its agent; a supervisor starts it again."""
    await stack.all_trusted()
    expected = [await stack.answer(prompt, tokens) for prompt, tokens in zip(PROMPTS, _LENGTHS, strict=True)]
    began_ms = time.time() * 1_000
    store, stop = Store(stack.addresses.redis), asyncio.Event()
    clients = [
        asyncio.create_task(_keep_asking(stack, prompt, tokens, stop))
        for prompt, tokens in zip(PROMPTS, _LENGTHS, strict=True)
    ]
    try:
        for name, drained in (("a", True), ("b", False)):
            await until(partial(_runs_something, store, name), 60, f"requests on node {name}")
            if drained:
                epoch = (await registry.get(store, name)).epoch
                await registry.set_state(store, name, epoch, NodeState.DRAINING, why="rolling restart", by="test")
                await until(partial(_runs_nothing, store, name), 60, f"node {name} without requests")
            agent = stack.pid(f"agent-{name}")
            os.kill(agent, signal.SIGTERM)
            await until(partial(_restarted, stack, name, agent), 30, f"another agent of node {name}")
            await wait_for_nodes(stack.api, 2)
        told = await events.history(store)
    finally:
        stop.set()
        served = [one for client in await asyncio.gather(*clients) for one in client]
        await store.aclose()
    # Then every answer equals its undisturbed reference
    by_prompt = {answer.prompt: answer for answer in expected}
    assert_whole([by_prompt[one.answer.prompt] for one in served], [one.answer for one in served])
    # No death, and so no recovery, came of it
    assert not [event for event in told if event.kind == events.Kind.NODE_DEAD and _ms(event) > began_ms]
    for name in ("a", "b"):
        left, back = _absence(told, name, began_ms)
        wrong = [
            one for one in served
            if one.answer.node == name and one.asked_ms > left + _SETTLE_MS and one.opened_ms < back
        ]  # fmt: skip
        assert wrong == []
        assert any(left < one.asked_ms < back for one in served), "nobody asked for anything meanwhile"


async def _keep_asking(stack: RunningStack, prompt: str, tokens: int, stop: asyncio.Event) -> list[_Served]:
    served = []
    end = time.monotonic() + 200
    while not stop.is_set() and time.monotonic() < end:
        one = _Served(Answer(prompt))
        running = asyncio.create_task(stream_answer(stack.client, one.answer, model=stack.model, max_tokens=tokens))
        opened = asyncio.create_task(one.answer.opened.wait())
        await asyncio.wait({running, opened}, return_when=asyncio.FIRST_COMPLETED)
        one.opened_ms = time.time() * 1_000
        opened.cancel()
        await running
        served.append(one)
    return served


def _restarted(stack: RunningStack, node: str, agent: int) -> bool:
    assert stack.stack.supervisor is not None
    return stack.stack.supervisor.pid(f"agent-{node}") not in (None, agent)


async def _requests(store: Store, node: str) -> int:
    return int(await store.redis.scard(f"unbroken:{{node:{node}}}:requests"))


async def _runs_something(store: Store, node: str) -> bool:
    return await _requests(store, node) > 0


async def _runs_nothing(store: Store, node: str) -> bool:
    return await _requests(store, node) == 0


def _absence(told: list[Event], node: str, since_ms: float) -> tuple[float, float]:
    """Return when a node first left service, and when it was first back in it."""
    left = back = 0.0
    for event in told:
        if event.kind == events.Kind.NODE_STATE and event.node == node and _ms(event) > since_ms:
            serves = policy.takes_requests(Node(node, state=NodeState(event.fields["state"])))
            if not serves and not left:
                left = _ms(event)
            elif serves and left and not back:
                back = _ms(event)
    assert 0 < left < back
    return left, back


def _ms(event: Event) -> float:
    return float(event.id.partition("-")[0])
