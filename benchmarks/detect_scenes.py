"""The stacks that faults hit: two nodes each, with the engines and the network their faults need."""

import asyncio
import sys
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from openai import AsyncOpenAI

from benchmarks.detect_faults import Scene, Victim
from benchmarks.detect_sightings import Sightings
from benchmarks.spread_stack import Place, SpreadStack
from benchmarks.wire import Wire
from cli.faults import FaultFailed, engine_pid, fault_settings
from cli.operations import Operations, Target, operations
from cli.stack import Stack
from cli.watching import WaitedInVain
from engines import model_files
from recovery.auth import read_token
from recovery.config import NodeSettings
from recovery.stopping import stop_tasks

_TERM_GRACE_S = 4.0
"""A stopped engine is killed this long after the recovery's TERM: until then, others may look at it as it is."""
_TRUSTED_S = 90.0
_ARGUMENTS = [
    "--host", "{host}", "--port", "{port}", "--model", "{model}", "--alias", "{alias}",
    "--slots", "{slots}", "--context", "{context}",
]  # fmt: skip
_MODULES: dict[Scene, str] = {"ballast": "benchmarks.detect_ballast", "two_processes": "tests.rigs.two_process_engine"}
"""Engines that are not the adapter's own."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A running stack and what a measurement needs of it."""

    stack: Stack
    api: Operations
    client: AsyncOpenAI
    sightings: Sightings
    wires: dict[str, Wire]

    async def trusted(self) -> None:
        """Wait until every node takes its full share of traffic. Raises WaitedInVain."""
        count, end = len(self.stack.settings.stack.nodes), asyncio.get_running_loop().time() + _TRUSTED_S
        while True:
            nodes = (await self.api.get("/v1/nodes"))["data"]
            if sum(node["state"] == "ALIVE" and node["weight"] >= 1 for node in nodes) == count:
                return
            if asyncio.get_running_loop().time() > end:
                seen = [f"{node['id']} {node['state']} {node['weight']} {node['detail']}" for node in nodes]
                raise WaitedInVain(f"all nodes should be whole within {_TRUSTED_S:g} s: {'; '.join(seen)}")
            await asyncio.sleep(0.1)

    async def victim(self, node: str) -> Victim:
        """Return the node as a fault needs to know it. Raises FaultFailed when it has no engine."""
        shown = await self.api.get(f"/v1/nodes/{node}")
        url = urlsplit(shown["engine_url"])
        agent_pid = self.stack.supervisor.pid(f"agent-{node}") if self.stack.supervisor else None
        if agent_pid is None or not url.hostname or not url.port:
            raise FaultFailed(f"node {node} is not whole")
        return Victim(
            node=node,
            epoch=shown["epoch"],
            engine_pid=await engine_pid(shown["agent"], read_token(self.stack.state_dir / "agent_token")),
            agent_pid=agent_pid,
            engine_url=shown["engine_url"],
            host=url.hostname,
            port=url.port,
            wire=self.wires.get(node),
        )


def engine_command(scene: Scene, port: int, node: NodeSettings) -> list[str]:
    """Return the command of a scene's engine, to be run without an agent on a loopback port."""
    values = {
        "host": "127.0.0.1", "port": port, "model": model_files.find(node.model), "alias": node.model_name,
        "slots": node.slots, "context": node.context,
    }  # fmt: skip
    module = _MODULES.get(scene, "engines.llamacpp_server")
    return [sys.executable, "-m", module, *(argument.format(**values) for argument in _ARGUMENTS)]


@asynccontextmanager
async def running(scene: Scene, folder: Path, log: Path) -> AsyncGenerator[Stage]:
    """Run a scene's stack, its state in `folder`. Wires need this thread's network to be a private one."""
    node: dict[str, Any] = {"term_grace_s": _TERM_GRACE_S}
    if scene in _MODULES:
        node["command"] = [sys.executable, "-m", _MODULES[scene], *_ARGUMENTS]
    settings = fault_settings(folder, node=node)
    wires = {name: Wire(number) for number, name in enumerate(settings.stack.nodes)} if scene == "wires" else {}
    places = {name: Place(wire.space, wire.there, wire.here) for name, wire in wires.items()}
    async with AsyncExitStack() as exits:
        for wire in wires.values():
            exits.callback(wire.close)
        sightings = Sightings(exits.enter_context(log.open("w", encoding="utf-8", buffering=1)))
        stack = SpreadStack(settings, sightings.sink, places)
        exits.push_async_callback(stack.stop)
        addresses = await stack.start()
        following = asyncio.create_task(sightings.follow(addresses.redis))
        exits.push_async_callback(stop_tasks, following)
        api = await exits.enter_async_context(operations(Target(addresses.gateway, addresses.operator_key)))
        client = await exits.enter_async_context(
            AsyncOpenAI(base_url=f"{addresses.gateway}/v1", api_key=addresses.inference_key, max_retries=0, timeout=60)
        )
        stage = Stage(stack, api, client, sightings, wires)
        await stage.trusted()
        yield stage
