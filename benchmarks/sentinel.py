"""What watching hundreds of nodes costs a sentinel: CPU, round trips, missed pongs, and deaths that were none.

Sentinels and Redis are real. The agents are fakes, which answer pings, leases and probes: 300 engines need a fleet.
"""

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

import aiohttp

from benchmarks.processes import cpu_s
from benchmarks.report import spread
from cli.stack import free_port
from recovery import events, registry
from recovery.config import Settings, as_environment, load
from recovery.errors import UnbrokenError
from recovery.registry import NodeState
from recovery.stopping import stop_tasks
from recovery.store import HEARTBEATS, Store, available
from tests.rigs.valkey import Valkey, running_valkey

_START_S = 90.0
_END_S = 15.0
_MEANING = {
    "cpu_percent_of_a_core": "user and system time of the process over the time watched",
    "rtt_ms": "last round trip of each node, taken from the heartbeats stream once a second",
    "pongs_missed": "pongs past their deadline, and the share of all pings sent meanwhile that is",
    "deaths": "node.dead events: every one is wrong here",
    "agents": "fakes: gRPC servers, leases and one engine that answers probes, on the same cores as all else",
}


class NotWatched(UnbrokenError):
    """The fleet did not come up, so nothing could be measured."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this measurement's options."""
    parser.add_argument("--nodes", type=int, default=300, help="nodes to watch (default 300)")
    parser.add_argument("--seconds", type=float, default=45.0, help="how long each is watched (default 45)")
    parser.add_argument("--sentinels", type=int, nargs="+", default=[1, 2], help="one run with each (default 1 2)")
    parser.add_argument("--watchers", type=int, help="sentinels that watch each node (default: the setting's)")
    parser.add_argument("--processes", type=int, default=2, help="processes that hold the agents (default 2)")
    parser.add_argument("--keep", type=Path, help="keep the sentinels' logs in this folder")


async def run(options: argparse.Namespace) -> dict[str, Any]:
    """Run the measurement and return its figures."""
    runs = {}
    for count in options.sentinels:
        runs[f"{count} sentinel{'s' if count > 1 else ''}"] = figures = await _run(options, count)
        print(count, "sentinels:", figures["sentinels"], file=sys.stderr, flush=True)
    return {"nodes": options.nodes, "seconds": options.seconds, "runs": runs, "meaning": _MEANING}


async def _run(options: argparse.Namespace, count: int) -> dict[str, Any]:
    with ExitStack() as exits:
        folder = Path(exits.enter_context(tempfile.TemporaryDirectory(prefix="unbroken-sentinel-")))
        redis = exits.enter_context(running_valkey(folder / "redis"))
        store = Store(redis.url)
        try:
            fakes = _start_fakes(exits, redis, options)
            await asyncio.gather(*(_said(fake, b"joined") for fake in fakes))
            settings = load()
            watchers = options.watchers or settings.heartbeat.watchers
            sentinels = [
                exits.enter_context(_sentinel(settings, redis, number, watchers, options.keep or folder))
                for number in range(count)
            ]
            await _all_watched(sentinels, options.nodes, min(watchers, count))
            return await _measure(options, store, sentinels, fakes, redis)
        finally:
            await store.aclose()


@dataclass(slots=True)
class _Sentinel:
    name: str
    port: int
    process: "subprocess.Popen[bytes]"

    async def metric(self, name: str) -> float:
        """Return a figure of its /metrics, 0 while it has none."""
        try:
            timeout = aiohttp.ClientTimeout(total=5)
            async with (
                aiohttp.ClientSession(timeout=timeout) as session,
                session.get(f"http://127.0.0.1:{self.port}/metrics") as response,
            ):
                lines = (await response.text()).splitlines()
        except (aiohttp.ClientError, TimeoutError, OSError):
            return 0.0
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.split("{")[0].split(" ")[0] == name)


@dataclass(slots=True)
class _Seen:
    """What the streams of Redis told while the fleet was watched."""

    rtt_ms: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """By sentinel."""
    deaths: list[str] = field(default_factory=list)
    suspicions: int = 0
    votes: int = 0

    def event(self, event: events.Event) -> None:
        """Take an event in."""
        if event.kind == events.Kind.NODE_DEAD:
            self.deaths.append(f"{event.node}: {event.fields.get('cause')}: {event.fields.get('evidence')}")
        self.votes += event.kind == events.Kind.NODE_VOTE
        self.suspicions += event.kind == events.Kind.NODE_STATE and event.fields.get("state") == NodeState.SUSPECT


async def _measure(
    options: argparse.Namespace,
    store: Store,
    sentinels: list[_Sentinel],
    fakes: "list[subprocess.Popen[bytes]]",
    redis: Valkey,
) -> dict[str, Any]:
    pids = {one.name: one.process.pid for one in sentinels} | {
        f"agents {number}": fake.pid for number, fake in enumerate(fakes)
    }
    pids |= {"redis": redis.pid, "this measurement": os.getpid()}
    seen = _Seen()
    missed = {one.name: await one.metric("unbroken_pongs_missed_total") for one in sentinels}
    slept = {one.name: await one.metric("unbroken_sentinel_sleeps_total") for one in sentinels}
    reading = asyncio.create_task(_follow(store, seen))
    began, before = time.monotonic(), {name: cpu_s(pid) for name, pid in pids.items()}
    try:
        await asyncio.sleep(options.seconds)
        took = time.monotonic() - began
        cpu = {name: round(100 * (cpu_s(pid) - before[name]) / took, 1) for name, pid in pids.items()}
    finally:
        await stop_tasks(reading)
    shown: dict[str, Any] = {}
    for one in sentinels:
        watched = await one.metric("unbroken_nodes_watched")
        late = await one.metric("unbroken_pongs_missed_total") - missed[one.name]
        shown[one.name] = {
            "nodes_watched": int(watched),
            "cpu_percent_of_a_core": cpu.pop(one.name),
            "rtt_ms": spread(seen.rtt_ms[one.name]),
            "pongs_missed": int(late),
            "pongs_missed_share": round(late / max(1.0, watched * took / 0.1), 6),
            "slept": int(await one.metric("unbroken_sentinel_sleeps_total") - slept[one.name]),
        }
    alive = [node.id for node in await registry.all_nodes(store) if node.state is NodeState.ALIVE]
    return {
        "sentinels": shown,
        "deaths": len(seen.deaths),
        "deaths_evidence": seen.deaths[:10],
        "votes": seen.votes,
        "suspicions": seen.suspicions,
        "nodes_alive_at_the_end": len(alive),
        "others_cpu_percent_of_a_core": cpu,
    }


async def _follow(store: Store, seen: _Seen) -> None:
    beats, after = "$", await events.last_id(store)  # a heartbeat missed between two reads is one sample less
    async with store.reader() as reader:
        while True:
            with available():
                reply = await reader.xread({HEARTBEATS: beats}, block=200, count=2_000)
            for _, entries in reply or []:
                for beat, fields in entries:
                    beats = beat
                    seen.rtt_ms[fields["sentinel"]].append(int(fields["rtt_us"]) / 1e3)
            for event in await events.read(reader, after, block_ms=10):
                after = event.id
                seen.event(event)


def _start_fakes(exits: ExitStack, redis: Valkey, options: argparse.Namespace) -> "list[subprocess.Popen[bytes]]":
    bounds = [round(options.nodes * part / options.processes) for part in range(options.processes + 1)]
    return [exits.enter_context(_fakes(redis, first, after - first)) for first, after in pairwise(bounds)]


@contextmanager
def _fakes(redis: Valkey, first: int, count: int) -> "Generator[subprocess.Popen[bytes]]":
    argv = [sys.executable, "-m", "benchmarks.sentinel_fakes", redis.url, str(first), str(count)]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        yield process
    finally:
        _end(process)


@contextmanager
def _sentinel(settings: Settings, redis: Valkey, number: int, watchers: int, logs: Path) -> Generator[_Sentinel]:
    name, port = f"s{number + 1}", free_port()
    changes: dict[str, dict[str, Any]] = {
        "redis": {"url": redis.url},
        "sentinel": {"id": name, "metrics_port": port},
        "heartbeat": {"watchers": watchers},
        "log": {"format": "json"},
    }
    own = settings.model_copy(
        update={section: getattr(settings, section).model_copy(update=values) for section, values in changes.items()}
    )
    logs.mkdir(parents=True, exist_ok=True)
    with (logs / f"{name}.log").open("wb") as log:
        argv = [sys.executable, "-m", "cli.main", "sentinel"]
        process = subprocess.Popen(
            argv, env={**os.environ, **as_environment(own)}, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
        try:
            yield _Sentinel(name, port, process)
        finally:
            _end(process)


def _end(process: "subprocess.Popen[bytes]") -> None:
    pipes: list[IO[bytes]] = [pipe for pipe in (process.stdin, process.stdout) if pipe is not None]
    if process.stdin is None:
        process.terminate()
    else:
        process.stdin.close()
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(_END_S)
    for pipe in pipes:
        pipe.close()


async def _said(process: "subprocess.Popen[bytes]", word: bytes) -> None:
    assert process.stdout is not None  # noqa: S101 - for the type checker: stdout=PIPE above
    async with asyncio.timeout(_START_S):
        line = await asyncio.to_thread(process.stdout.readline)
    if line.strip() != word:
        raise NotWatched(f"the fake agents did not join: {line!r}")


async def _all_watched(sentinels: list[_Sentinel], nodes: int, each: int) -> None:
    end = time.monotonic() + _START_S
    while True:
        watched = [await one.metric("unbroken_nodes_watched") for one in sentinels]
        if sum(watched) == nodes * each:
            break
        if time.monotonic() > end:
            raise NotWatched(f"{nodes * each} watches were expected within {_START_S:g} s; there are {watched}")
        await asyncio.sleep(0.5)
    # The first seconds, with their connections and first probes, are not what a fleet costs.
    await asyncio.sleep(5.0)
