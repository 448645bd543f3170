"""How jobs look on a terminal."""

from datetime import datetime
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

_COLOURS = {
    "succeeded": "green", "skipped": "dim", "running": "yellow", "pending": "dim", "queued": "yellow",
    "failed": "red", "needs_operator": "red", "cancelled": "dim",
    "ALIVE": "green", "DEAD": "red", "QUARANTINED": "red", "NEEDS_OPERATOR": "red", "STOPPED": "dim",
    "SUSPECT": "yellow", "STARTING": "yellow", "RECOVERING": "yellow", "WARMING": "yellow", "PROBATION": "yellow",
    "DRAINING": "yellow",
}  # fmt: skip


def print_nodes(console: Console, nodes: list[dict[str, Any]]) -> None:
    """Print a table of nodes, a line each, and below it why they stand where they do; a round trip of 0 is unknown."""
    gpus = any(node["gpu"] for node in nodes)
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in ("node", "state", "epoch", "weight", "rtt (smoothed, usual) µs", "free", "queue", "job"):
        table.add_column(name, no_wrap=name in ("node", "state"))
    if gpus:
        table.add_column("gpu")
    for node in nodes:
        trips = f"{node['rtt_us']:.0f} ({node['ewma_us']:.0f}, {node['baseline_us']:.0f})"
        queue = f"{node['running']}+{node['waiting']}/{node['slots']}"
        table.add_row(
            node["id"], _state(node["state"]), str(node["epoch"]), f"{node['weight']:.0%}", trips,
            f"{node['free_ratio']:.0%}", queue, node["job"], *([node["gpu"]] if gpus else []),
        )  # fmt: skip
    console.print(table)
    for node in nodes:
        why = _why(node)
        if why:
            console.print(f"{node['id']}: {why}", markup=False, highlight=False)


def _why(node: dict[str, Any]) -> str:
    """Return what is known of the reason: the cause of a death, what led to the state, the agent's own words."""
    known = [node["cause"], node["why"], node["detail"]]
    return "; ".join(dict.fromkeys(word for word in known if word))


def job_table(jobs: list[dict[str, Any]]) -> Table:
    """Return a table of jobs, a line each."""
    table = Table("job", "node", "epoch", "state", "cause", "started by", "at", "took", "error")
    for job in jobs:
        took = job["ended_ms"] - job["created_ms"] if job["ended_ms"] else 0
        table.add_row(
            job["id"], job["node"], _epochs(job), _state(job["state"]), job["cause"], job["started_by"],
            _clock(job["created_ms"]), f"{took} ms" if took else "", job["error"],
        )  # fmt: skip
    return table


def print_job(console: Console, job: dict[str, Any]) -> None:
    """Print a job with its steps: when each began after the job, and how long it took."""
    console.print(
        f"job [bold]{job['id']}[/]  node {job['node']}  epoch {_epochs(job)}  {_state(job['state'])}  "
        f"cause {job['cause']}  by {job['started_by']}"
    )
    if job["evidence"]:
        console.print(f"  evidence: {job['evidence']}", markup=False)
    if job["error"]:
        console.print(f"  [red]{job['error']}[/]")
    table = Table("step", "state", "began after", "took", "attempts", "outcome")
    for step in job["steps"]:
        began = f"{step['began_ms'] - job['created_ms']} ms" if step["began_ms"] else ""
        took = f"{step['ended_ms'] - step['began_ms']} ms" if step["ended_ms"] else ""
        outcome = step["error"] or ", ".join(f"{name} {value}" for name, value in step["outcome"].items() if value)
        table.add_row(step["name"], _state(step["state"]), began, took, str(step["attempts"]), outcome)
    console.print(table)


def _epochs(job: dict[str, Any]) -> str:
    return f"{job['epoch']} → {job['new_epoch']}" if job["new_epoch"] else str(job["epoch"])


def _state(state: str) -> str:
    return f"[{_COLOURS.get(state, 'white')}]{state}[/]"


def _clock(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1_000).astimezone().strftime("%H:%M:%S")
