"""How jobs look on a terminal."""

from datetime import datetime
from typing import Any

from rich.console import Console
from rich.table import Table

_COLOURS = {
    "succeeded": "green", "skipped": "dim", "running": "yellow", "pending": "dim", "queued": "yellow",
    "failed": "red", "needs_operator": "red", "cancelled": "dim",
}  # fmt: skip


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
