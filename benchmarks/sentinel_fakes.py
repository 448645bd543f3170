"""Many fake agents in one process: real gRPC servers, leases and registry entries, and no engines behind them.

`python -m benchmarks.sentinel_fakes REDIS FIRST COUNT`; says "joined", serves until standard input ends.
"""

import asyncio
import contextlib
import gc
import sys

from recovery.registry import NodeState
from recovery.store import Store
from tests.rigs.fake_agent import FakeAgent
from tests.rigs.fake_llamacpp import fake_llamacpp

_LEASE_MS = 5_000
_MOST_S = 1_800.0
"""It ends by itself after that, whoever forgot it."""


async def main(redis: str, first: int, count: int) -> None:
    """Serve nodes n`first` … as long as standard input is open."""
    store = Store(redis)
    agents = [FakeAgent(f"n{first + number:04}") for number in range(count)]
    # Probes of all of them go to one fake engine: it answers each with a token.
    async with fake_llamacpp() as engine:
        try:
            for agent in agents:
                agent.report.engine_url = engine.url
                await agent.start()
                await agent.join(store, NodeState.ALIVE, _LEASE_MS, engine_url=engine.url, weight=1.0)
            # A collection that looks at all servers would make hundreds of agents silent together for 0.1 s.
            gc.collect()
            gc.freeze()
            print("joined", flush=True)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_MOST_S):
                    await _end_of_input()
            print(engine.probes, sum(agent.pings for agent in agents), flush=True)
        finally:
            await asyncio.gather(*(agent.stop() for agent in agents))
            await store.aclose()


async def _end_of_input() -> None:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    await reader.read()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
