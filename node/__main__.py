"""Run an agent with settings from environment and file: `python -m node`."""

import asyncio
import signal
import sys

from node import agent
from recovery import config, log
from recovery.errors import SettingsError


def main() -> int:
    """Run until SIGTERM or SIGINT; return the exit code."""
    try:
        settings = config.load()
    except SettingsError as error:
        sys.stderr.write(f"{error}\n")
        return agent.REFUSED
    log.configure(settings.log, process="agent", node=settings.node.id)
    return asyncio.run(_run(settings))


async def _run(settings: config.Settings) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return await agent.run(settings, stop)


if __name__ == "__main__":
    sys.exit(main())
