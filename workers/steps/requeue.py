"""Requeue: give every request of the dead epoch its next attempt: a peer now, or its node once it is back.

An assignment is a compare-and-set: whoever loses against a gateway finds the work done.
"""

import asyncio
import time
from collections import Counter
from dataclasses import replace
from typing import Any

from recovery import journal, policy, registry
from recovery.jobs import Job
from recovery.journal import Assignment, Entry
from recovery.registry import Node, NodeState
from workers.context import Context, Wait
from workers.ending import superseded_by

_PATIENCE_S = 60.0
"""How long the second wave waits for somebody able to serve; paused streams give up by then on their own."""


async def run(context: Context, job: Job) -> dict[str, Any]:
    """Route the first wave; outcome counts {"peer", "wait", "taken", "gone"}."""
    entries, nodes = await asyncio.gather(
        journal.entries_on(context.store, job.node, job.epoch), registry.all_nodes(context.store)
    )
    if not entries:
        return {"peer": 0, "wait": 0, "taken": 0}
    own = next((node for node in nodes if node.id == job.node), Node(job.node))
    # A node that came back by itself is as good as any other.
    dead = "" if superseded_by(job) else job.node
    return await _place(context, job, entries, nodes, own, dead, policy.restart_ms(own))


async def run_waiting(context: Context, job: Job) -> dict[str, Any]:
    """Route the second wave: what waited goes to the recovered node or a peer; outcome as in `run`, and "left"."""
    entries = await journal.entries_on(context.store, job.node, job.epoch)
    if not entries:
        return {"peer": 0, "taken": 0, "left": 0}
    nodes = await registry.all_nodes(context.store)
    own = next((node for node in nodes if node.id == job.node), Node(job.node))
    if own.state is NodeState.PROBATION:
        # Proven by its warm-up: these requests chose to wait for it, and may use it before its ramp begins.
        nodes = [replace(node, weight=1.0) if node.id == job.node else node for node in nodes]
    counts = await _place(context, job, entries, nodes, own, "", None)
    if counts["left"]:
        began = job.steps["requeue_waiting"].began_ms / 1_000 or time.time()
        if time.time() - began < _PATIENCE_S:
            raise Wait(f"no node can take {counts['left']} waiting requests yet")
    return counts


async def _place(
    context: Context,
    job: Job,
    entries: list[Entry],
    nodes: list[Node],
    own: Node,
    dead: str,
    restart_ms: float | None,
) -> dict[str, Any]:
    by = f"job:{job.id}"
    load: Counter[str] = Counter()
    moves: list[tuple[Entry, Node]] = []
    waiting: list[tuple[str, Assignment]] = []
    left = 0
    for entry in entries:
        route = policy.route(
            entry.prompt_tokens + entry.delivered,
            entry.model,
            entry.identity,
            nodes,
            dead,
            token_ms=policy.prefill_ms_per_token(own),
            restart_left_ms=restart_ms,
            load=load,
            min_free=context.settings.routing.min_free,
        )
        if route.kind == "peer" and route.node is not None:
            load[route.node.id] += 1
            moves.append((entry, route.node))
        elif route.kind == "wait":
            order = Assignment(entry.request, entry.attempt, "wait", job.node, own.epoch, job.id, by)
            waiting.append((entry.gateway, order))
        else:
            left += 1
    results = await journal.assign_many(
        context.store, [(entry.request, entry.attempt, node.id, node.epoch) for entry, node in moves], by
    )
    orders = [
        (entry.gateway, replace(standing, job=job.id))
        for (entry, _), (verdict, standing) in zip(moves, results, strict=True)
        if verdict == "assigned" and standing is not None
    ]
    await journal.push_many(context.store, [*orders, *waiting])
    verdicts = Counter(verdict for verdict, _ in results)
    return {
        "peer": verdicts["assigned"], "wait": len(waiting), "taken": verdicts["taken"], "gone": verdicts["gone"],
        "left": left,
    }  # fmt: skip
