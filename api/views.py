"""How jobs, nodes and plans look to an operator. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from recovery import policy
from recovery.jobs import PLANS, Job
from recovery.journal import Entry
from recovery.registry import Node


def job_view(job: Job) -> dict[str, Any]:
    """Return a job as the API shows it; times are ms since 1970."""
    view = asdict(job)
    view["state"] = job.state.value
    view["steps"] = []
    for plan in job.plan:
        step = asdict(job.steps[plan.name])
        del step["lease_ms"]
        step["queue"] = plan.queue
        step["needs"] = list(plan.needs)
        step["took_ms"] = step["ended_ms"] - step["began_ms"] if step["ended_ms"] else None
        view["steps"].append(step)
    view["took_ms"] = job.ended_ms - job.created_ms if job.ended_ms else None
    view["events"] = f"/v1/recovery/jobs/{job.id}/events"
    return view


def node_view(node: Node) -> dict[str, Any]:
    """Return a node as the API shows it; `queue` is its depth in batches: 1 means that every slot is taken."""
    queue = (node.running + node.waiting) / max(node.slots, 1)
    return {**asdict(node), "state": node.state.value, "queue": round(queue, 2)}


def plan_view(node: Node, entries: Sequence[Entry], nodes: Iterable[Node], action: str) -> dict[str, Any]:
    """Return what a job would do: its steps, and where each request of the node would go."""
    load: dict[str, int] = {}
    moves = []
    everybody = list(nodes)
    for entry in entries:
        tokens = entry.prompt_tokens + entry.delivered
        route = policy.route(
            tokens,
            entry.model,
            entry.identity,
            everybody,
            node.id,
            token_ms=policy.prefill_ms_per_token(node),
            restart_left_ms=policy.restart_ms(node),
            load=load,
        )
        to = route.node.id if route.node else ""
        if to:
            load[to] = load.get(to, 0) + 1
        moves.append({
            "request": entry.request,
            "tokens": tokens,
            "route": route.kind,
            "to": to,
            "estimate_ms": round(route.estimate_ms),
        })  # fmt: skip
    return {
        "dry_run": True,
        "action": action,
        "node": node.id,
        "epoch": node.epoch,
        "steps": [
            {"name": step.name, "needs": list(step.needs), "queue": step.queue, "deadline_s": step.deadline_s}
            for step in PLANS[action]
        ],
        "requests": moves,
        "restart_ms": policy.restart_ms(node),
    }
