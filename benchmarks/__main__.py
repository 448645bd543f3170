"""`python -m benchmarks NAME [--json FILE] …`: run one measurement and keep its figures with machine and command."""

import argparse
import asyncio
from pathlib import Path

from benchmarks import detect, quiet, resume, sentinel, soak
from benchmarks.report import write

MEASUREMENTS = {"detect": detect, "quiet": quiet, "resume": resume, "sentinel": sentinel, "soak": soak}


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    names = parser.add_subparsers(dest="name", required=True)
    for name, module in MEASUREMENTS.items():
        sub = names.add_parser(name, help=module.__doc__.splitlines()[0] if module.__doc__ else None)
        sub.add_argument("--json", type=Path, help="write figures, machine and command to this file")
        module.add_arguments(sub)
    options = parser.parse_args()
    figures = asyncio.run(MEASUREMENTS[options.name].run(options))
    write(options.name, figures, options.json)


if __name__ == "__main__":
    main()
