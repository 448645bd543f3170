"""From a fault to the moment the gateway gives its node nothing more, beside what TCP and a health poll see of it.

Real engines, real signals, real cuts, each proven; every fault hits a whole stack whose nodes take full traffic.
"""

import argparse
import asyncio
import random
import sys
import tempfile
import time
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from benchmarks import detect_alone
from benchmarks.detect_faults import FAULTS, Fault, Victim
from benchmarks.detect_figures import Injection, figures
from benchmarks.detect_load import Requests
from benchmarks.detect_scenes import Stage, running
from benchmarks.detect_witnesses import PollWitness, TcpWitness
from benchmarks.namespaces import enter_private_network
from cli.faults import FaultFailed
from cli.watching import wait_for_job
from recovery.stopping import stop_tasks

_FOUND_S = 20.0
_SETTLE_S = (0.3, 1.3)
"""Random pause before a fault: it must meet pings and probes at any point of their period."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this measurement's options."""
    parser.add_argument("--count", type=int, default=30, help="injections of each fault (default 30)")
    parser.add_argument("--only", action="append", choices=list(FAULTS), help="this fault only; may be repeated")
    parser.add_argument("--seed", type=int, default=1, help="of pauses and polls (default 1)")
    parser.add_argument("--keep", type=Path, help="keep the stacks' logs in this folder")


async def run(options: argparse.Namespace) -> dict[str, Any]:
    """Run the measurement and return its figures, times in ms. Raises NamespacesRefused for links without rights."""
    chosen = options.only or list(FAULTS)
    if any(FAULTS[name].scene == "wires" for name in chosen):
        enter_private_network()
    rng, runs = random.Random(options.seed), _Runs()
    for scene, names in groupby(sorted(chosen, key=_order), key=lambda name: FAULTS[name].scene):
        with tempfile.TemporaryDirectory(prefix="unbroken-detect-") as folder:
            logs = options.keep or Path(folder)
            logs.mkdir(parents=True, exist_ok=True)
            async with running(scene, Path(folder), logs / f"{scene}.log") as stage:
                for name in names:
                    runs.done[name] = []
                    for number in range(options.count):
                        await _inject(stage, name, number, rng, runs)
                runs.unexpected += _unexpected(stage, runs)
    alone = {name: await detect_alone.observe(name, rng) for name in chosen if name in detect_alone.NAMES}
    return figures(runs.done, alone, runs.missed, runs.unexpected)


@dataclass(slots=True)
class _Runs:
    """What came of the injections so far."""

    done: dict[str, list[Injection]] = field(default_factory=dict)
    missed: list[str] = field(default_factory=list)
    """Injections that could not be made, and why."""
    unexpected: list[str] = field(default_factory=list)
    """Deaths that no fault explains."""
    struck: set[tuple[str, int]] = field(default_factory=set)


async def _inject(stage: Stage, name: str, number: int, rng: random.Random, runs: _Runs) -> None:
    fault = FAULTS[name]
    await stage.trusted()
    await asyncio.sleep(rng.uniform(*_SETTLE_S))
    requests = Requests(stage.client, stage.stack.settings.node.model_name, fault.streams, number)
    try:
        nodes = stage.stack.settings.stack.nodes
        victim = await stage.victim(await requests.busiest() if fault.streams else nodes[number % len(nodes)])
        runs.struck.add((victim.node, victim.epoch))
        injection = await _watched(stage, fault, victim, rng)
    except (FaultFailed, OSError, TimeoutError) as error:
        runs.missed.append(f"{name} {number}: {error}")
        _say(f"{name} {number + 1}: missed, {error}")
        return
    finally:
        whole = await requests.whole()
    injection.streams, injection.streams_whole = fault.streams, whole
    runs.done[name].append(injection)
    _say(f"{name} {number + 1}: {injection.line()}")
    if injection.found_ms is not None:
        await wait_for_job(stage.api, victim.node, int(injection.wall_ms))


async def _watched(stage: Stage, fault: Fault, victim: Victim, rng: random.Random) -> Injection:
    """Strike, and keep what everyone sees of it."""
    poll = PollWitness(victim.engine_url)
    await poll.check()
    tcp = await TcpWitness.connect(victim.host, victim.port)
    polling: asyncio.Task[None] | None = None
    try:
        polling = asyncio.create_task(poll.watch(asyncio.get_running_loop().time(), rng))
        try:
            struck = await fault.strike(victim)
            out_ns = await stage.sightings.out_ns(victim.node, victim.epoch, _FOUND_S)
            await asyncio.wait({polling})
        finally:
            relieved_ns = time.monotonic_ns()
            fault.relieve(victim)
        verdict = await stage.sightings.verdict(victim.node, victim.epoch) if out_ns is not None else None
        return Injection.of(
            fault, struck, out_ns=out_ns, verdict=verdict, tcp_ns=tcp.ended_ns, poll=poll, relieved_ns=relieved_ns
        )
    finally:
        await tcp.close()
        if polling is not None:
            await stop_tasks(polling)


def _unexpected(stage: Stage, runs: _Runs) -> list[str]:
    found = stage.sightings.verdicts
    return [
        f"{one.node} epoch {one.epoch}: {one.cause}: {one.evidence}"
        for key, one in found.items()
        if key not in runs.struck
    ]


def _order(name: str) -> tuple[str, int]:
    # Faults of one scene follow each other; links come last.
    return FAULTS[name].scene, list(FAULTS).index(name)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
