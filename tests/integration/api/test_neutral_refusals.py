"""Requests that are refused say nothing about nodes; nodes that fail every request are found between them (G4-01)."""

from typing import Any

from recovery import events
from recovery.store import Store
from tests.rigs.fake_llamacpp import fake_llamacpp, text
from tests.rigs.gateway import MODEL, register, running_gateway, until
from tests.rigs.streams import Collected, collect_raw

_REFUSED = 7
"""Token budget the fakes refuse with a 400, for want of a fault in the request that only an engine can see."""


def _ask(tokens: int, prompt: int = 3) -> dict[str, Any]:
    return {"model": MODEL, "prompt": list(range(1, prompt + 1)), "max_tokens": tokens}


async def test_twenty_bad_requests_close_no_node_and_twenty_more_hide_no_broken_one(
    redis_url: str, store: Store
) -> None:
    """Over-long ones and such as the engine refuses; then a node that answers 500 to all valid ones between 400s."""

    def picky(order: dict[str, Any]) -> int:
        return 400 if order["n_predict"] == _REFUSED else 0

    async with (
        fake_llamacpp(refuses=picky) as a,
        fake_llamacpp(refuses=picky) as b,
        fake_llamacpp(refuses=picky) as c,
    ):
        for name, engine in (("a", a), ("b", b), ("c", c)):
            await register(store, name, engine.url)
        async with running_gateway(redis_url, request={"resume_patience_ms": 20}) as gateway:
            await gateway.ready()

            async def serve(body: dict[str, Any]) -> Collected:
                return await collect_raw(gateway.session, gateway.url, body, path="completions")

            async def broken() -> set[str]:
                told = await store.redis.xrange("unbroken:events")
                return {fields["node"] for _, fields in told if fields["kind"] == events.Kind.UPSTREAM_BROKEN}

            # When twenty of each kind come, valid ones among them
            for _ in range(20):
                assert (await serve(_ask(4, prompt=5_000))).error
                assert (await serve(_ask(_REFUSED))).error
                assert (await serve(_ask(4))).text == text(0, 4)
            # Then all three nodes serve, and nobody is accused
            assert all(any(order["n_predict"] == 4 for order in engine.orders) for engine in (a, b, c))
            assert await broken() == set()

            # When one of them fails every valid request from now on
            a.refuses = lambda order: picky(order) or 500

            async def found() -> bool:
                assert (await serve(_ask(_REFUSED))).error
                assert (await serve(_ask(4))).text == text(0, 4)
                return await broken() == {"a"}

            # Then it is reported, while every valid request is served
            await until(found, 20, every=0.0)
