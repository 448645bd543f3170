"""`unbroken`: one command for the demo, the stack, its single processes, and its operators."""

import sys

import typer

from cli import client_commands, demo_command, processes
from recovery.errors import UnbrokenError

app = typer.Typer(
    name="unbroken",
    help="Token streams that outlive the engine under them.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
processes.add_to(app)
client_commands.add_to(app)
demo_command.add_to(app)


def main() -> None:
    """Run the command line; what Unbroken refuses is one line on stderr and exit code 2."""
    try:
        app()
    except UnbrokenError as error:
        print(f"unbroken: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
