"""A FakeAgent in a process of its own: for tests that stop the process, or block its loop under living threads.

Run as a module: joins node ``a`` to the Redis given, then serves; SIGUSR1 blocks the event loop for good.
"""

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

from recovery.store import Store
from tests.rigs.fake_agent import FakeAgent

_ROOT = Path(__file__).parents[2]


@contextlib.asynccontextmanager
async def lone_agent(redis_url: str, node: str = "a", lease_ms: int = 5_000) -> AsyncIterator[int]:
    """Run one and yield its pid once it has joined; it is killed afterwards."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.rigs.lone_agent", redis_url, node, str(lease_ms),
        cwd=_ROOT, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        assert await asyncio.wait_for(process.stdout.readline(), 20) == b"joined\n"
        yield process.pid
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
        await process.wait()


async def _serve(redis_url: str, node: str, lease_ms: int) -> None:
    agent, store = FakeAgent(node), Store(redis_url)
    await agent.start()
    await agent.join(store, lease_ms=lease_ms)
    # Run by the loop itself: it stands, while gRPC's own threads go on answering pings.
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, time.sleep, 600)
    print("joined", flush=True)
    await asyncio.sleep(600)


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1], sys.argv[2], int(sys.argv[3])))
