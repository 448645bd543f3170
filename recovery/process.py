"""How each long-lived process begins and ends: settings, logs, one event loop, signals turned into a stop event."""

import asyncio
import signal
import sys
from collections.abc import Awaitable, Callable

from recovery import log
from recovery.config import Settings, load
from recovery.errors import UnbrokenError

Run = Callable[[Settings, asyncio.Event], Awaitable[int]]


def main(name: str, run: Run, **bound: str | int) -> int:
    """Run a process until it returns or a signal stops it; return its exit code.

    What Unbroken itself refuses becomes one line on stderr and exit code 2: starting again will not help.
    """
    try:
        settings = load()
        log.configure(settings.log, process=name, **bound)
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            return runner.run(_until_stopped(run, settings))
    except UnbrokenError as error:
        print(f"unbroken {name}: {error}", file=sys.stderr)  # noqa: T201 - the process's last word
        return 2


async def _until_stopped(run: Run, settings: Settings) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    return await run(settings, stop)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    import uvloop  # here, so that reading settings needs no event loop

    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory
