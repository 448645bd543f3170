"""Commands that run processes: the whole stack (`up`), or one of its parts."""

import asyncio
import os
import sys
from collections.abc import Callable
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.text import Text

from recovery import process
from recovery.config import Settings, load

_COLOURS = ("cyan", "magenta", "yellow", "green", "blue", "bright_cyan", "bright_magenta", "bright_yellow")


def add_to(app: typer.Typer) -> None:
    """Add these commands to the command line."""
    for command in (up, gateway, sentinel, dispatcher, worker, agent, flower):
        app.command()(command)


def up() -> None:
    """Start a complete installation on this machine; Ctrl-C stops it."""
    raise typer.Exit(process.main("up", _up))


async def _up(settings: Settings, stop: asyncio.Event) -> int:
    from cli.stack import Stack, wait_for_end

    stack = Stack(settings, prefixed_lines(Console(file=sys.stdout, highlight=False, soft_wrap=True)))
    try:
        starting = asyncio.create_task(stack.start())
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not starting.done():
            starting.cancel()
            await asyncio.wait({starting})
            return 0
        addresses = starting.result()
        print(
            f"\nunbroken is up\n  OpenAI API   {addresses.gateway}/v1   key {addresses.inference_key}\n"
            f"  operations   {addresses.gateway}/docs   key {addresses.operator_key}\n"
            f"  Flower       {addresses.flower}\n  Ctrl-C stops it\n",
            flush=True,
        )
        await wait_for_end(stack, stop)
    finally:
        await stack.stop()
    return 0


def prefixed_lines(console: Console) -> Callable[[str, str], None]:
    """Return a sink that prints each line behind its process's name, a colour each."""
    colours: dict[str, str] = {}

    def sink(name: str, line: str) -> None:
        colour = colours.setdefault(name, _COLOURS[len(colours) % len(_COLOURS)])
        console.print(Text.assemble((f"{name:<12}| ", colour), Text.from_ansi(line)))

    return sink


def gateway() -> None:
    """Run one gateway."""
    from api import server

    raise typer.Exit(process.main("gateway", server.run))


def sentinel() -> None:
    """Run one sentinel."""
    from detectors import sentinel

    raise typer.Exit(process.main("sentinel", sentinel.run))


def dispatcher() -> None:
    """Run the dispatcher: turns events into jobs and keeps jobs moving."""
    from workers import dispatcher

    raise typer.Exit(process.main("dispatcher", dispatcher.run))


def agent() -> None:
    """Run one node's agent, which starts and owns its engine."""
    from node import agent

    raise typer.Exit(process.main("agent", agent.run))


def worker(
    queue: Annotated[Literal["fast", "slow"], typer.Argument(help="fast: fence and requeue; slow: the rest")],
) -> None:
    """Run a set of Celery workers for one queue."""
    from workers.app import worker_argv, worker_env

    settings = load()
    settings.redis.address()
    stack = settings.stack
    concurrency = stack.fast_workers if queue == "fast" else stack.slow_workers
    _become(worker_argv(queue, concurrency, queue), worker_env())


def flower() -> None:
    """Run Flower on the recovery workers."""
    from workers.app import flower_argv, flower_env

    settings = load()
    settings.redis.address()
    stack = settings.stack
    _become(flower_argv(stack.flower_host, stack.flower_port), flower_env(stack.flower_host))


def _become(argv: list[str], env: dict[str, str]) -> None:
    sys.stdout.flush()
    os.execve(argv[0], argv, {**os.environ, **env})  # noqa: S606 - our own argv, no shell
