"""`python -m detectors`: one sentinel process."""

import asyncio
import signal
import sys

import uvloop

from detectors.sentinel import run
from recovery import config, log
from recovery.errors import SettingsError


async def _main(settings: config.Settings) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return await run(settings, stop)


def main() -> int:
    """Run until SIGTERM or SIGINT; return the exit code."""
    try:
        settings = config.load()
        log.configure(settings.log, process="sentinel")
        return uvloop.run(_main(settings))
    except SettingsError as error:
        sys.stderr.write(f"sentinel: {error}\n")
        return 2


if __name__ == "__main__":
    sys.exit(main())
