"""A real gateway in the test's own loop, and engines registered as nodes without an agent."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import aiohttp
from openai import AsyncOpenAI

from api import server
from engines import connect
from engines.llamacpp import open_session
from recovery import leases, registry
from recovery.config import Settings
from recovery.registry import NodeState
from recovery.store import Store
from tests.rigs.ports import free_port

MODEL = "smollm2"
START_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class RunningGateway:
    """One gateway that serves."""

    url: str
    id: str
    session: aiohttp.ClientSession
    stop: asyncio.Event
    task: "asyncio.Task[int]"

    def openai(self, key: str = "any", **options: Any) -> AsyncOpenAI:
        """Return the real openai client for it; the caller closes it (`async with`)."""
        return AsyncOpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0, timeout=60.0, **options)

    async def ready(self) -> None:
        """Wait until it is ready: its routing table has a node."""
        await until(self._is_ready, START_SECONDS)

    async def _is_ready(self) -> bool:
        async with self.session.get(f"{self.url}/readyz") as answer:
            return answer.status == 200

    async def metric(self, name: str) -> float:
        """Return the sum of a metric over its labels."""
        async with self.session.get(f"{self.url}/metrics") as answer:
            text = await answer.text()
        rows = [line for line in text.splitlines() if line.startswith((name + " ", name + "{"))]
        return sum(float(row.rsplit(" ", 1)[1]) for row in rows)


@contextlib.asynccontextmanager
async def running_gateway(redis_url: str, **sections: dict[str, Any]) -> AsyncIterator[RunningGateway]:
    """Run a gateway with ``sections`` of settings and yield it once it answers."""
    port = free_port()
    own: dict[str, Any] = {"host": "127.0.0.1", "port": port, "id": f"test-{port}"}
    sections = {"redis": {"url": redis_url, "timeout_ms": 500}, "gateway": own, **sections}
    stop = asyncio.Event()
    task = asyncio.create_task(server.run(Settings(**sections), stop))  # type: ignore[arg-type]
    async with aiohttp.ClientSession() as session:
        gateway = RunningGateway(f"http://127.0.0.1:{port}", own["id"], session, stop, task)
        try:
            await until(lambda: _answers(gateway), START_SECONDS)
            yield gateway
        finally:
            stop.set()
            await asyncio.wait([task], timeout=15)
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                raise AssertionError("the gateway did not stop")


async def register(store: Store, node: str, url: str, **fields: Any) -> int:
    """Register the engine at ``url`` as a healthy node under a new epoch, as an agent would; return the epoch."""
    async with open_session() as session:
        about = await connect("llamacpp", url, session).capabilities(10.0)
    epoch = (await leases.boot(store, node, f"test-{node}", 0, 0, 600_000)).epoch
    known: dict[str, str | int | float | bool] = {
        "engine_url": url,
        "kind": about.kind,
        "model": about.model,
        "identity": about.identity,
        "context": about.context,
        "slots": about.slots,
        "invariant": about.invariant,
        "deterministic_seed": about.deterministic_seed,
    }
    await registry.register(store, node, epoch, {**known, **fields})
    await registry.set_state(store, node, epoch, NodeState.ALIVE, weight=1.0)
    return epoch


async def until(condition: Any, seconds: float, every: float = 0.02) -> None:
    """Poll an async condition until it holds. Raises AssertionError at the deadline."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while not await condition():
        if loop.time() > end:
            raise AssertionError(f"this did not become true within {seconds:g} s: {condition}")
        await asyncio.sleep(every)


async def _answers(gateway: RunningGateway) -> bool:
    if gateway.task.done():
        raise AssertionError(f"the gateway ended: {gateway.task.result()}")
    try:
        async with gateway.session.get(f"{gateway.url}/healthz") as answer:
            return answer.status == 200
    except aiohttp.ClientError:
        return False
