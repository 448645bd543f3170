"""Nodes that leave and come back one after another under requests: nobody is sent to them meanwhile (case G4-09)."""

import asyncio
import time
from typing import Any

from recovery import registry
from recovery.registry import NodeState
from recovery.store import Store
from tests.rigs.fake_llamacpp import FakeLlamaCpp, fake_llamacpp, text
from tests.rigs.gateway import MODEL, RunningGateway, register, running_gateway, until
from tests.rigs.streams import Collected, collect_raw

_TOKENS = 20
_SETTLE_S = 0.25
"""From a state's event on, for the gateway to have obeyed and for what it had chosen before to have arrived."""


async def test_a_rolling_restart_of_three_nodes_under_requests_is_seen_by_no_client(
    redis_url: str, store: Store
) -> None:
    """Each drains, stops with its engine, starts, warms up: twenty requests a second, none to it, all answers whole."""
    async with fake_llamacpp(token_s=0.02) as a, fake_llamacpp(token_s=0.02) as b, fake_llamacpp(token_s=0.02) as c:
        engines = {"a": a, "b": b, "c": c}
        for name, engine in engines.items():
            await register(store, name, engine.url)
        async with running_gateway(redis_url) as gateway:
            await gateway.ready()
            stop = asyncio.Event()
            clients = asyncio.create_task(_twenty_a_second(gateway, stop))
            try:
                for name, engine in engines.items():
                    await _restart(store, name, engine)
            finally:
                stop.set()
                answers = await clients
            assert len(answers) > 20
            assert {(answer.text, answer.error, answer.done) for answer in answers} == {(text(0, _TOKENS), "", 1)}
            # Streams that were open when their engine ended went on elsewhere
            assert any("resumed" in comment for answer in answers for comment in answer.comments)
            assert all(engine.orders for engine in engines.values())


async def _restart(store: Store, name: str, engine: FakeLlamaCpp) -> None:
    """Take a node through all that a restart does; assert at each station that it is sent nothing."""
    epoch = (await registry.get(store, name)).epoch
    await until(lambda: _busy(engine), 10)
    await registry.set_state(store, name, epoch, NodeState.DRAINING)
    await _nothing_comes(engine, None)
    assert engine.aborted == 0
    # A restart with streams open
    await registry.set_state(store, name, epoch, NodeState.ALIVE, weight=1.0)
    await until(lambda: _busy(engine), 10)
    await registry.set_state(store, name, epoch, NodeState.STOPPED)
    engine.fate = "reset"
    await _nothing_comes(engine, None)
    engine.fate = ""
    for state in (NodeState.STARTING, NodeState.WARMING):
        await _nothing_comes(engine, (store, name, epoch, state))
    before = len(engine.orders)
    await registry.set_state(store, name, epoch, NodeState.ALIVE, weight=1.0)

    async def used_again() -> bool:
        return len(engine.orders) > before

    await until(used_again, 10)


async def _busy(engine: FakeLlamaCpp) -> bool:
    return engine.live > 0


async def _nothing_comes(engine: FakeLlamaCpp, change: tuple[Store, str, int, NodeState] | None) -> None:
    if change is not None:
        await registry.set_state(*change)
    await asyncio.sleep(_SETTLE_S)
    before = len(engine.orders)
    await asyncio.sleep(2 * _SETTLE_S)
    assert len(engine.orders) == before


async def _twenty_a_second(gateway: RunningGateway, stop: asyncio.Event) -> list[Collected]:
    body: dict[str, Any] = {"model": MODEL, "prompt": [1, 2, 3], "max_tokens": _TOKENS}
    running: list[asyncio.Task[Collected]] = []
    end = time.monotonic() + 60
    while not stop.is_set() and time.monotonic() < end:
        running.append(asyncio.create_task(collect_raw(gateway.session, gateway.url, body, path="completions")))
        await asyncio.sleep(0.05)
    return await asyncio.gather(*running)
