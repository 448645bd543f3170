"""`unbroken demo`: a real engine killed in mid-answer, the answer that goes on, and the node that comes back."""

from pathlib import Path
from typing import Annotated

import typer

from recovery import process


def add_to(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command()(demo)


def demo(
    once: Annotated[
        bool, typer.Option("--once", help="stop the stack afterwards instead of leaving it running")
    ] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="write what was measured to this file")] = None,
) -> None:
    """Start a stack, kill -9 the engine that is answering, and watch the answer go on."""
    from cli.demo import Demo

    raise typer.Exit(process.main("demo", Demo(once=once, json_file=json_file).run))
