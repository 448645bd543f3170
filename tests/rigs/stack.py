"""A whole stack for acceptance tests: real engines, real Redis, Celery, Flower, gateway; and its real clients."""

import asyncio
import os
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI

from cli.answers import Answer, stream_answer
from cli.faults import engine_pid
from cli.operations import Operations, Target, operations
from cli.stack import Addresses, Stack
from cli.watching import wait_for_nodes
from recovery.auth import read_token
from recovery.config import Settings


@dataclass
class RunningStack:
    """A stack and the clients a test needs."""

    stack: Stack
    addresses: Addresses
    api: Operations
    client: AsyncOpenAI
    log: Path

    @property
    def model(self) -> str:
        """The public name of the model."""
        return self.stack.settings.node.model_name

    async def node(self, node: str) -> dict[str, Any]:
        """Return a node as the operations API shows it."""
        shown: dict[str, Any] = await self.api.get(f"/v1/nodes/{node}")
        return shown

    async def engine_pid(self, node: str) -> int:
        """Return the pid of a node's engine."""
        token = read_token(self.stack.state_dir / "agent_token")
        return await engine_pid((await self.node(node))["agent"], token)

    def pid(self, process: str) -> int:
        """Return the pid of a process of the stack."""
        assert self.stack.supervisor is not None
        pid = self.stack.supervisor.pid(process)
        assert pid is not None, f"{process} is not running"
        return pid

    async def answer(self, prompt: str, max_tokens: int = 64, **options: Any) -> Answer:
        """Stream one greedy answer through the openai client."""
        return await stream_answer(self.client, Answer(prompt), model=self.model, max_tokens=max_tokens, **options)

    async def all_trusted(self, timeout: float = 60.0) -> None:
        """Wait until every node is ALIVE, after whatever an earlier test did."""
        await wait_for_nodes(self.api, len(self.stack.settings.stack.nodes), timeout)


@asynccontextmanager
async def running_stack(settings: Settings) -> AsyncGenerator[RunningStack]:
    """Start a whole stack, wait until its nodes are trusted, and stop it afterwards."""
    settings.stack.state_dir.mkdir(parents=True, exist_ok=True)
    log = settings.stack.state_dir.parent / "stack.log"
    with log.open("w", encoding="utf-8", buffering=1) as file:
        stack = Stack(settings, lambda name, line: print(f"{time.time():.3f} {name} | {line}", file=file))
        try:
            addresses = await stack.start()
            client = AsyncOpenAI(
                base_url=f"{addresses.gateway}/v1", api_key=addresses.inference_key, max_retries=0, timeout=120
            )
            async with operations(Target(addresses.gateway, addresses.operator_key)) as api, client:
                running = RunningStack(stack, addresses, api, client, log)
                await running.all_trusted()
                yield running
        except BaseException:
            print(log.read_text(encoding="utf-8")[-20_000:])
            raise
        finally:
            await stack.stop()


async def until(condition: Callable[[], bool | Awaitable[bool]], timeout: float = 20.0, what: str = "it") -> None:
    """Wait for a condition, with a deadline."""
    deadline = time.monotonic() + timeout
    while True:
        result = condition()
        if result if isinstance(result, bool) else await result:
            return
        assert time.monotonic() < deadline, f"{what} did not come about within {timeout:g} s"
        await asyncio.sleep(0.02)


def alive(pid: int) -> bool:
    """Whether a process exists (a zombie does)."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
