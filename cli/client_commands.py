"""Commands for operators: look at nodes and jobs, start a recovery by hand."""

import asyncio
from typing import Annotated, Any

import typer
from rich.console import Console

from cli.operations import find_target, operations
from cli.show import job_table, print_job, print_nodes

Url = Annotated[str | None, typer.Option(help="gateway address; default: the stack running in this state directory")]
ApiKey = Annotated[str | None, typer.Option("--key", envvar="UNBROKEN_KEY", help="API key with scope operator")]

_console = Console()


def add_to(app: typer.Typer) -> None:
    """Add these commands to the command line."""
    for command in (nodes, jobs, recover):
        app.command()(command)


def nodes(url: Url = None, key: ApiKey = None) -> None:
    """List the nodes: state and why, epoch, weight, round trip, load."""
    print_nodes(_console, asyncio.run(_get("/v1/nodes", url, key))["data"])


def jobs(
    job: Annotated[str | None, typer.Argument(help="a job's id, to see its steps")] = None,
    url: Url = None,
    key: ApiKey = None,
) -> None:
    """List recovery jobs, newest first, or show one with its steps and times."""
    if job is None:
        _console.print(job_table(asyncio.run(_get("/v1/recovery/jobs", url, key))["data"]))
    else:
        print_job(_console, asyncio.run(_get(f"/v1/recovery/jobs/{job}", url, key)))


def recover(
    node: Annotated[str, typer.Argument(help="the node to fence, restart and warm up")],
    reason: Annotated[str, typer.Option(help="why; goes into the job's history")] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="show the plan and change nothing")] = False,
    url: Url = None,
    key: ApiKey = None,
) -> None:
    """Start a recovery of a node by hand."""
    body = {"node": node, "action": "recover", "reason": reason, "dry_run": dry_run}
    answer = asyncio.run(_post("/v1/recovery/jobs", body, url, key))
    if dry_run:
        _console.print_json(data=answer)
    else:
        _console.print(f"job {answer['id']} is {answer['state']}; see `unbroken jobs {answer['id']}`")


async def _get(path: str, url: str | None, key: str | None) -> Any:
    async with operations(find_target(url, key)) as api:
        return await api.get(path)


async def _post(path: str, body: dict[str, Any], url: str | None, key: str | None) -> Any:
    async with operations(find_target(url, key)) as api:
        return await api.post(path, body)
