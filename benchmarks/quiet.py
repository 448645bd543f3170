"""Whether anything dies that lives: nodes under load, too few cores, and a bad line between them and the control plane.

Real engines; packets are delayed and lost by a relay between two network namespaces. Deaths must be none.
"""

import argparse
import asyncio
import os
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI

from benchmarks.detect_sightings import Sightings
from benchmarks.namespaces import enter_private_network
from benchmarks.quiet_load import Burners, Requests
from benchmarks.quiet_watch import Watch
from benchmarks.relay import BadLine, Carried
from benchmarks.report import spread
from benchmarks.spread_stack import Place, SpreadStack
from cli.faults import fault_settings
from cli.operations import Target, operations
from cli.stack import Addresses
from cli.watching import wait_for_nodes
from recovery.auth import read_token

_START_S = 180.0
"""Deadline for all nodes to serve; they join over the bad line."""
_WARM_S = 5.0
"""Requests before the busy processes begin, and before a sudden change of the line."""
_CLIENT_S = 120.0
_SAY_S = 10.0
_MEANING = {
    "deaths": "node.dead events since the stack's start; no fault was injected, so every one is wrong",
    "line": "what the relay did; delay, jitter and loss are those of each direction",
    "links": "as the sentinel sees them, once a second",
    "longest_engine_stall_ms": "longest time an engine's counter stood with work pending, as its agent says, sampled "
    "once a second",
    "http_polling": "GET /health of each engine over the same line every 3 s with 1 s timeout, a connection each",
    "runnable_threads": "threads that ran or waited for a core, every 0.5 s",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this measurement's options."""
    parser.add_argument("--minutes", type=float, default=10.0, help="how long it is watched (default 10)")
    parser.add_argument("--nodes", type=int, default=4, help="nodes (default 4)")
    parser.add_argument("--streams", type=int, default=8, help="requests kept running (default 8)")
    parser.add_argument("--busy", type=float, default=3.0, help="busy processes for each core (default 3)")
    parser.add_argument("--delay-ms", type=float, default=50.0, help="of each packet (default 50)")
    parser.add_argument("--jitter-ms", type=float, default=30.0, help="± of that delay (default 30)")
    parser.add_argument("--loss", type=float, default=20.0, help="percent of packets, each direction (default 20)")
    parser.add_argument(
        "--sudden",
        action="store_true",
        help="start on a good line, which turns bad at once (default: bad from the start)",
    )
    parser.add_argument("--seed", type=int, default=1, help="of the line (default 1)")
    parser.add_argument("--keep", type=Path, help="keep the stack's log here")


async def run(options: argparse.Namespace) -> dict[str, Any]:
    """Run the measurement and return its figures. Raises NamespacesRefused without the rights for a line."""
    enter_private_network()
    async with AsyncExitStack() as exits:
        folder = Path(exits.enter_context(tempfile.TemporaryDirectory(prefix="unbroken-quiet-")))
        line = BadLine(options.seed)
        try:
            log = exits.enter_context((options.keep or folder / "stack.log").open("w", encoding="utf-8", buffering=1))
            nodes = [f"n{number + 1}" for number in range(options.nodes)]
            settings = fault_settings(folder, stack={"nodes": nodes})
            places = {node: Place(line.space, line.there, line.here) for node in nodes}
            stack = SpreadStack(settings, Sightings(log).sink, places)
            if not options.sudden:
                _disturb(line, options)
            try:
                return await _watched(options, stack, await stack.start(), line)
            finally:
                await stack.stop()
        finally:
            line.close()


async def _watched(
    options: argparse.Namespace, stack: SpreadStack, addresses: Addresses, line: BadLine
) -> dict[str, Any]:
    burners = Burners()
    async with AsyncExitStack() as exits:
        api = await exits.enter_async_context(operations(Target(addresses.gateway, addresses.operator_key)))
        client = await exits.enter_async_context(
            AsyncOpenAI(
                base_url=f"{addresses.gateway}/v1", api_key=addresses.inference_key, max_retries=0, timeout=_CLIENT_S
            )
        )
        before = await wait_for_nodes(api, options.nodes, _START_S)
        requests = Requests(client, stack.settings.node.model_name)
        exits.push_async_callback(requests.stop)
        requests.start(options.streams)
        await asyncio.sleep(_WARM_S)
        watch = Watch(
            addresses.redis,
            before,
            read_token(stack.state_dir / "agent_token"),
        )
        exits.push_async_callback(watch.stop)
        exits.callback(burners.stop)
        burners.start(round(options.busy * (os.cpu_count() or 1)))
        _disturb(line, options)
        await _wait(60 * options.minutes, watch, requests)
        figures, carried = watch.report(), line.disturb()
        after = {node["id"]: node for node in (await api.get("/v1/nodes"))["data"]}
        return {
            "minutes": options.minutes,
            "nodes": options.nodes,
            "cores": os.cpu_count(),
            "busy_processes": burners.count,
            "line": _line(options, carried),
            "restarts": {node["id"]: after[node["id"]]["epoch"] - node["epoch"] for node in before},
            "clients": asdict(requests.served),
            **figures,
            "meaning": _MEANING,
        }


def _disturb(line: BadLine, options: argparse.Namespace) -> None:
    line.disturb(delay_ms=options.delay_ms, jitter_ms=options.jitter_ms, loss=options.loss / 100)


async def _wait(seconds: float, watch: Watch, requests: Requests) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        await asyncio.sleep(min(_SAY_S, max(0.0, end - time.monotonic())))
        served = requests.served
        print(
            f"{end - time.monotonic():.0f} s left: {len(watch.deaths)} deaths, {served.tokens} tokens, "
            f"{served.whole} whole answers, errors {dict(served.errors)}",
            file=sys.stderr,
            flush=True,
        )


def _line(options: argparse.Namespace, carried: Carried) -> dict[str, Any]:
    return {
        "sudden": options.sudden,
        "delay_ms": options.delay_ms,
        "jitter_ms": options.jitter_ms,
        "loss_percent": options.loss,
        "packets": carried.packets,
        "lost": carried.lost,
        "achieved_delay_ms": spread(carried.delays_ms),
    }
