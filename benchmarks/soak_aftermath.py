"""What a soak must leave behind: everything calm, whole, and nothing left over."""

import asyncio
import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.processes import family, resident_bytes, state
from benchmarks.soak_faults import engines
from cli.operations import GatewayAnswer, Operations
from cli.stack import Stack
from recovery.store import PREFIX, Store, node_key

_CALM_WITHIN_S = 90.0
_QUIET_S = 2.0
_FORGOTTEN_S = 8.0
_CALM_S = 10.0
_GROWTH_MB = 120
_COMPLAINTS = (
    "Traceback",
    '"exception"',
    "stream.bug",
    "task.does_not_stop",
    "event_failed",
    "dead_letter",
    "node.stranded",
)
_EXPLAINED = ("Connection to broker lost", "Couldn't ack")
"""Celery's own account of a Redis that died."""
_PROCESSES = ("redis", "sentinel", "dispatcher", "worker-fast", "worker-slow", "gateway", "flower")


async def look(stack: Stack, api: Operations, store: Store, before: dict[str, int], *, lossy: bool) -> dict[str, Any]:
    """Wait until all is calm, watch that it stays so, and look for what did not heal.

    `lossy`: Redis lost writes, so entries of requests that had ended may be back until their time is over.
    """
    began = calm_since = time.monotonic()
    problems = []
    # A node whose recovery Redis forgot looks whole until its agent notices.
    enough = _FORGOTTEN_S if lossy else _QUIET_S
    while time.monotonic() - calm_since < enough:
        if restless := await _restless(stack, api):
            calm_since = time.monotonic()
            if calm_since - began > _CALM_WITHIN_S:
                problems.append(f"not calm after {_CALM_WITHIN_S:g} s: {'; '.join(restless)}")
                break
        await asyncio.sleep(0.2)
    calm_after = round(calm_since - began, 1)
    jobs = (await api.get("/v1/recovery/jobs"))["data"]
    nodes = (await api.get("/v1/nodes"))["data"]
    await asyncio.sleep(_CALM_S)
    again = (await api.get("/v1/recovery/jobs"))["data"]
    problems += [
        f"job {job['id']} while calm: {job['cause']}: {job['evidence']}"
        for job in again
        if job["id"] not in {old["id"] for old in jobs}
    ]
    problems += [
        f"node {new['id']} went from {old['state']} {old['epoch']} to {new['state']} {new['epoch']} while calm"
        for old, new in zip(nodes, (await api.get("/v1/nodes"))["data"], strict=True)
        if (old["state"], old["epoch"]) != (new["state"], new["epoch"])
    ]
    problems += [
        f"job {job['id']} {job['state']}: {job['error']}"
        for job in again
        if job["state"] not in ("succeeded", "cancelled")
    ]
    problems += await _redis_left(stack, store, lossy=lossy)
    problems += _process_troubles(stack, before)
    return {
        "calm_after_s": calm_after,
        "jobs": dict(Counter(job["state"] for job in again)),
        "causes": dict(Counter(job["cause"] for job in again)),
        "rss_mb": {name: [before.get(name, 0), size] for name, size in sizes(stack).items()},
        "problems": problems,
    }


def left_over(stack: Stack) -> list[str]:
    """Return processes that outlived their stack."""
    return [f"{name} (pid {pid}) outlived its stack" for pid, name in _of(stack).items()]


def complaints(log: Path, *, lossy: bool) -> list[str]:
    """Return what the processes' logs complain of that no fault explains.

    A Redis that lost writes may strand a node: its job is gone, and the reconciler begins another.
    """
    explained = (*_EXPLAINED, "node.stranded") if lossy else _EXPLAINED
    found: Counter[str] = Counter()
    for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
        if any(word in line for word in _COMPLAINTS) and not any(word in line for word in explained):
            found[_short(line)] += 1
    return [f"log, {count} times: {line}" for line, count in found.items()]


def sizes(stack: Stack) -> dict[str, int]:
    """Return each process's resident memory with its children's, in MB."""
    return {name: sum(resident_bytes(pid) // 1_048_576 for pid in family(root)) for name, root in _roots(stack).items()}


async def _restless(stack: Stack, api: Operations) -> list[str]:
    try:
        nodes = (await api.get("/v1/nodes"))["data"]
        jobs = (await api.get("/v1/recovery/jobs"))["data"]
        figures = {name: await api.metric(name) for name in ("unbroken_requests_running", "unbroken_requests_waiting")}
    except GatewayAnswer as error:
        return [str(error)]
    restless = [
        f"node {node['id']} {node['state']} weight {node['weight']} epoch {node['epoch']} {node['detail']}"
        for node in nodes
        if node["state"] != "ALIVE" or node["weight"] < 1 or node["running"]
    ]
    restless += [f"job {job['id']} {job['state']}" for job in jobs if not job["ended_ms"]]
    restless += [f"{name} {value:g}" for name, value in figures.items() if value]
    if len(nodes) != len(stack.settings.stack.nodes):
        restless.append(f"{len(nodes)} nodes")
    return restless


async def _redis_left(stack: Stack, store: Store, *, lossy: bool) -> list[str]:
    redis, left = store.redis, []
    async for key in redis.scan_iter(match=PREFIX + "{request:*", count=1_000):
        ttl = await redis.ttl(key)
        if ttl < 0 or not lossy:
            left.append(f"redis: {key} is left (time to live {ttl} s)")
    for node in stack.settings.stack.nodes if not lossy else ():
        if stale := await redis.smembers(node_key(node, "requests")):
            left.append(f"redis: requests of node {node} left: {sorted(stale)}")
    pending = await redis.xpending(PREFIX + "events", "dispatcher")
    if pending["pending"]:
        left.append(f"redis: {pending['pending']} events pending")
    for key in (PREFIX + "events:dead", PREFIX + "jobs:live", PREFIX + "limits:{takeovers}"):
        if await redis.exists(key) and (key == PREFIX + "events:dead" or await _size(redis, key)):
            left.append(f"redis: {key} is not empty")
    for queue in ("recovery.fast", "recovery.slow"):
        if waiting := await redis.llen(f"{PREFIX}celery:{queue}"):
            left.append(f"redis: {waiting} messages in {queue}")
    return left


async def _size(redis: Any, key: str) -> int:
    return int(await (redis.scard if await redis.type(key) == "set" else redis.zcard)(key))


def _process_troubles(stack: Stack, before: dict[str, int]) -> list[str]:
    troubles = []
    # Idle pools keep the connections that a dead Redis closed until they are used again: bounded, and not counted.
    waiting = _close_wait(int(stack.addresses.redis.rsplit(":", 1)[1].split("/")[0])) if stack.addresses else set()
    for name, root in _roots(stack).items():
        for pid in family(root):
            if state(pid) == "Z":
                troubles.append(f"zombie {pid} under {name}")
            if count := len(waiting & _socket_inodes(pid)):
                troubles.append(f"{count} sockets of {name} (pid {pid}) in CLOSE_WAIT")
    troubles += [
        f"{name} grew from {before[name]} to {size} MB"
        for name, size in sizes(stack).items()
        if name in before and size > before[name] + _GROWTH_MB
    ]
    known = {pid for root in _roots(stack).values() for pid in family(root)}
    known |= {pid for node in stack.settings.stack.nodes for _, pid in engines(stack, node)}
    troubles += [f"orphan {pid}: {name}" for pid, name in _of(stack).items() if pid not in known]
    for node in stack.settings.stack.nodes:
        if len(engines(stack, node)) != 1:
            troubles.append(f"node {node} has engines {engines(stack, node)}")
    return troubles


def _roots(stack: Stack) -> dict[str, int]:
    assert stack.supervisor is not None  # noqa: S101 - for the type checker: start() has returned
    names = (*_PROCESSES, *(f"agent-{node}" for node in stack.settings.stack.nodes))
    return {name: pid for name in names if (pid := stack.supervisor.pid(name)) is not None}


def _of(stack: Stack) -> dict[int, str]:
    """Return pid and command of every process that carries this stack's settings in its environment."""
    wanted = f"UNBROKEN_STACK__STATE_DIR={stack.state_dir}".encode()
    found = {}
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and wanted in (entry / "environ").read_bytes().split(b"\0"):
                found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()[:80]
        except OSError:
            continue
    return found


def _close_wait(redis_port: int) -> set[str]:
    rows = Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:]
    return {
        fields[9]
        for fields in map(str.split, rows)
        if fields[3] == "08" and int(fields[2].split(":")[1], 16) != redis_port
    }


def _socket_inodes(pid: int) -> set[str]:
    found = set()
    try:
        for handle in Path(f"/proc/{pid}/fd").iterdir():
            try:
                target = str(handle.readlink())
            except OSError:
                continue
            if target.startswith("socket:["):
                found.add(target[8:-1])
    except OSError:
        pass
    return found


def _short(line: str) -> str:
    _, _, rest = line.partition(" ")
    name, _, text = rest.partition(" | ")
    try:
        fields = json.loads(text)
    except ValueError:
        return rest[:300]
    return f"{name} {fields.get('event')}: {str(fields.get('exception') or fields.get('error') or '')[-400:]}"
