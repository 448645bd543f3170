"""Keeps a whole stack under load while real faults hit it at random, then looks for anything that did not heal.

Every answer is compared token by token with an undisturbed one; every fault proves that it happened.
"""

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI

from benchmarks import soak_aftermath
from benchmarks.soak_faults import Faults
from benchmarks.soak_load import Load
from cli.faults import fault_settings
from cli.operations import Target, operations
from cli.stack import Stack
from cli.watching import wait_for_nodes
from recovery.config import Settings
from recovery.store import Store

_PAUSE_S = 6.0
_LAST_ANSWERS_S = 150.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this measurement's options."""
    parser.add_argument("--seconds", type=float, default=120.0, help="how long faults are injected (default 120)")
    parser.add_argument("--streams", type=int, default=4, help="requests kept running (default 4)")
    parser.add_argument("--seed", type=int, default=1, help="of the sequence of faults and requests (default 1)")
    parser.add_argument("--faults", help="only these, comma-separated (default: all)")
    parser.add_argument("--keep", type=Path, help="keep the stack's log here")


async def run(options: argparse.Namespace) -> dict[str, Any]:
    """Run the measurement and return its figures."""
    with tempfile.TemporaryDirectory(prefix="unbroken-soak-") as folder:
        settings = fault_settings(Path(folder))
        log = options.keep or Path(folder) / "stack.log"
        with log.open("w", encoding="utf-8", buffering=1) as file:
            stack = Stack(settings, lambda name, line: print(f"{time.time():.3f} {name} | {line}", file=file))
            try:
                await stack.start()
                figures = await _soak(options, settings, stack)
            finally:
                await stack.stop()
        figures["problems"] += soak_aftermath.left_over(stack) + soak_aftermath.complaints(
            log, lossy=figures["redis_lost_writes"]
        )
        return figures


async def _soak(options: argparse.Namespace, settings: Settings, stack: Stack) -> dict[str, Any]:
    addresses = stack.addresses
    assert addresses is not None  # noqa: S101 - for the type checker: start() has returned
    client = AsyncOpenAI(
        base_url=f"{addresses.gateway}/v1", api_key=addresses.inference_key, max_retries=0, timeout=_LAST_ANSWERS_S
    )
    store = Store(addresses.redis)
    try:
        async with operations(Target(addresses.gateway, addresses.operator_key)) as api, client:
            await wait_for_nodes(api, len(settings.stack.nodes))
            load_ = Load(client, settings.node.model_name, random.Random(options.seed))
            await load_.learn()
            before = soak_aftermath.sizes(stack)
            faults = Faults(stack, api, load_, random.Random(options.seed), _say)
            await _disturb(options, load_, faults)
            calm = await soak_aftermath.look(stack, api, store, before, lossy=faults.lossy)
            return _figures(options, settings, load_, faults, calm)
    finally:
        await store.aclose()


async def _disturb(options: argparse.Namespace, load_: Load, faults: Faults) -> None:
    """Inject faults under load for the time given, then let the last answers end."""
    chosen = options.faults.split(",") if options.faults else list(faults.all)
    rng = random.Random(options.seed)
    end = time.monotonic() + options.seconds
    streams = [asyncio.create_task(load_.keep_asking(number)) for number in range(options.streams)]
    try:
        while time.monotonic() < end:
            await asyncio.sleep(rng.uniform(0, _PAUSE_S))
            await faults.inject(rng.choice(chosen))
    finally:
        load_.stop()
        _, late = await asyncio.wait(streams, timeout=_LAST_ANSWERS_S)
        for task in late:
            task.cancel()
        await faults.settle()
    await asyncio.gather(*streams)


def _figures(
    options: argparse.Namespace, settings: Settings, load_: Load, faults: Faults, calm: dict[str, Any]
) -> dict[str, Any]:
    done = load_.done
    spent = [one for one in done if one.spent(faults.deaths, settings.request.max_retries)]
    problems = [f"request {one.describe(faults.deaths)}" for one in done if not one.whole and one not in spent]
    difference = load_.difference
    return {
        "seed": options.seed,
        "seconds": options.seconds,
        "streams": options.streams,
        "faults": dict(Counter(name for name, _ in faults.injected)),
        "not_injected": faults.missed,
        "redis_lost_writes": faults.lossy,
        "requests": dict(Counter(one.kind for one in done)),
        "errors": dict(Counter(one.error for one in done if one.error and one not in spent)),
        "cut_more_often_than_retried": len(spent),
        "lost": difference.lost,
        "duplicated": difference.duplicated,
        "mismatched": difference.mismatched,
        "longest_gap_s": round(max((one.gap for one in done), default=0.0), 2),
        **{name: value for name, value in calm.items() if name != "problems"},
        "problems": problems + calm["problems"],
    }


def _say(line: str) -> None:
    print(f"{time.time():.3f} {time.strftime('%H:%M:%S')} {line}", file=sys.stderr, flush=True)
