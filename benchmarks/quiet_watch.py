"""What happened meanwhile: deaths and doubts, the links' figures, health polls over the same line, load."""

import asyncio
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import grpc.aio

from benchmarks.report import spread
from protocol import unbroken_pb2, unbroken_pb2_grpc
from protocol.channel import credentials, open_channel
from recovery import events
from recovery.errors import StoreUnavailable
from recovery.registry import NodeState
from recovery.stopping import stop_tasks
from recovery.store import EVENTS, HEARTBEATS, Store, available

_POLL_EVERY_S = 3.0
_POLL_TIMEOUT_S = 1.0
_STATUS_EVERY_S = 1.0
_STATUS_S = 5.0
_LOAD_EVERY_S = 0.5
_READ_S = 3.0
_AGAIN_S = 0.2
_EVIDENCE = 20


@dataclass(slots=True)
class Polls:
    """One node's health polls."""

    made: int = 0
    failed: int = 0
    streak: int = 0
    longest_streak: int = 0

    def take(self, *, passed: bool) -> None:
        """Count one."""
        self.made += 1
        self.failed += not passed
        self.streak = 0 if passed else self.streak + 1
        self.longest_streak = max(self.longest_streak, self.streak)


@dataclass(slots=True)
class _Link:
    rtt_ms: list[float] = field(default_factory=list)
    ewma_ms: list[float] = field(default_factory=list)
    jitter_ms: list[float] = field(default_factory=list)
    misses: int = 0


class Watch:
    """Watches a running stack until `stop`."""

    def __init__(self, redis: str, nodes: Sequence[Mapping[str, Any]], token: str | None) -> None:
        """`nodes`: as the operations API shows them."""
        self._epochs = {str(node["id"]): int(node["epoch"]) for node in nodes}
        self.polls = {node: Polls() for node in self._epochs}
        self.deaths: list[str] = []
        self.kinds: Counter[str] = Counter()
        self.states: Counter[str] = Counter()
        self._links: dict[str, _Link] = {node: _Link() for node in self._epochs}
        self._died: set[str] = set()
        self._stalls_ms = dict.fromkeys(self._epochs, 0)
        self._runnable: list[float] = []
        self._token = token
        self._store = Store(redis)
        work = [self._follow(), self._sample_load()]
        work += [self._poll(node["id"], node["engine_url"]) for node in nodes]
        work += [self._ask(node["id"], node["agent"]) for node in nodes]
        self._tasks = [asyncio.create_task(one) for one in work]

    async def stop(self) -> None:
        """Watch no longer. Raises what a part of it broke with."""
        ended = [task for task in self._tasks if task.done()]
        await stop_tasks(*self._tasks)
        await self._store.aclose()
        for task in ended:
            task.result()

    def report(self) -> dict[str, Any]:
        """Return the figures as JSON."""
        made, failed = (sum(getattr(one, name) for one in self.polls.values()) for name in ("made", "failed"))
        return {
            "deaths": len(self.deaths),
            "deaths_evidence": self.deaths[:_EVIDENCE],
            "suspicions": self.states[NodeState.SUSPECT],
            "votes": self.kinds[events.Kind.NODE_VOTE],
            "leases_expired": self.kinds[events.Kind.LEASE_EXPIRED],
            "upstreams_broken": self.kinds[events.Kind.UPSTREAM_BROKEN],
            "states": dict(self.states),
            "links": {
                node: {
                    "rtt_ms": spread(link.rtt_ms),
                    "ewma_ms": spread(link.ewma_ms),
                    "jitter_ms": spread(link.jitter_ms),
                    "most_misses_in_a_row_seen": link.misses,
                }
                for node, link in self._links.items()
            },
            "longest_engine_stall_ms": self._stalls_ms,
            "http_polling": {
                "polls": made,
                "failed": failed,
                "nodes_killed_by_one_failure": failed,
                "nodes_killed_by_three_in_a_row": sum(one.longest_streak >= 3 for one in self.polls.values()),
                "longest_row_of_failures": {node: one.longest_streak for node, one in self.polls.items()},
            },
            "runnable_threads": spread(self._runnable),
            "load_average_1_min": float(Path("/proc/loadavg").read_text(encoding="ascii").split()[0]),
        }

    async def _follow(self) -> None:
        after: dict[str, str] = {}
        while True:
            try:
                # Deaths count from the stack's start on. No "$": what came between two reads would be missed.
                after = after or {EVENTS: "0-0", HEARTBEATS: await _last(self._store, HEARTBEATS)}
                async with self._store.reader() as reader:
                    while True:
                        async with asyncio.timeout(_READ_S):
                            with available():
                                reply = await reader.xread(after, block=500, count=500)
                        for name, entries in reply or []:
                            after[name] = entries[-1][0]
                            if name == HEARTBEATS:
                                for _, fields in entries:
                                    self._beat(fields)
                            else:
                                for event in events.parse(entries):
                                    self._event(event)
            except (StoreUnavailable, TimeoutError):
                await asyncio.sleep(_AGAIN_S)

    def _event(self, event: events.Event) -> None:
        self.kinds[event.kind] += 1
        if event.kind == events.Kind.NODE_STATE:
            self.states[event.fields.get("state", "")] += 1
        elif event.kind == events.Kind.NODE_DEAD:
            if event.epoch >= self._epochs.get(event.node, 0):
                self._died.add(event.node)
            fields = event.fields
            self.deaths.append(f"{event.node} epoch {event.epoch}: {fields.get('cause')}: {fields.get('evidence')}")

    def _beat(self, fields: Mapping[str, str]) -> None:
        link = self._links[fields["node"]]
        link.rtt_ms.append(int(fields["rtt_us"]) / 1e3)
        link.ewma_ms.append(int(fields["ewma_us"]) / 1e3)
        link.jitter_ms.append(int(fields["jitter_us"]) / 1e3)
        link.misses = max(link.misses, int(fields["misses"]))

    async def _poll(self, node: str, url: str) -> None:
        while node not in self._died:
            began = time.monotonic()
            timeout, connector = aiohttp.ClientTimeout(total=_POLL_TIMEOUT_S), aiohttp.TCPConnector(force_close=True)
            try:
                async with (
                    aiohttp.ClientSession(connector=connector, timeout=timeout) as session,
                    session.get(url + "/health") as response,
                ):
                    passed = response.status == 200
            except (aiohttp.ClientError, TimeoutError, OSError):
                passed = False
            if node not in self._died:  # an engine that was ended by mistake is the verdict's fault, not polling's
                self.polls[node].take(passed=passed)
            await asyncio.sleep(max(0.0, began + _POLL_EVERY_S - time.monotonic()))

    async def _ask(self, node: str, address: str) -> None:
        """Ask the agent now and then for how long its engine has stood still."""
        channel = open_channel(address)
        try:
            stub = unbroken_pb2_grpc.AgentStub(channel)
            while True:
                try:
                    report = await stub.Status(
                        unbroken_pb2.StatusRequest(), timeout=_STATUS_S, metadata=credentials(self._token)
                    )
                except grpc.aio.AioRpcError:
                    pass  # lost on the line; the next one tells
                else:
                    self._stalls_ms[node] = max(self._stalls_ms[node], report.still_ms)
                await asyncio.sleep(_STATUS_EVERY_S)
        finally:
            await channel.close()

    async def _sample_load(self) -> None:
        while True:
            self._runnable.append(_runnable())
            await asyncio.sleep(_LOAD_EVERY_S)


async def _last(store: Store, stream: str) -> str:
    with available():
        newest = await store.redis.xrevrange(stream, count=1)
    return str(newest[0][0]) if newest else "0-0"


def _runnable() -> float:
    """Return how many threads run or wait for a core now."""
    for line in Path("/proc/stat").read_text(encoding="ascii").splitlines():
        if line.startswith("procs_running"):
            return float(line.split()[1])
    return 0.0
