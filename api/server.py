"""Runs the gateway: uvicorn as a library, on a socket bound beforehand, ended by our own stop event."""

import asyncio
import errno
import socket
from collections.abc import Generator
from contextlib import contextmanager

import structlog
import uvicorn

from api.app import create_app, drain
from recovery.config import Settings
from recovery.errors import SettingsError

log = structlog.get_logger()

_GRACE_S = 3
"""Seconds for connections that are still open after the drain."""
_BACKLOG = 2_048


class _Server(uvicorn.Server):
    """A server that leaves the process's signals alone."""

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


async def run(settings: Settings, stop: asyncio.Event) -> int:
    """Serve until ``stop`` is set; return the exit code. Raises SettingsError (keys file, occupied port)."""
    app = create_app(settings)
    try:
        listener = _listen(settings.gateway.host, settings.gateway.port)
    except OSError as error:
        raise SettingsError(_explain(settings, error)) from error
    host, port = listener.getsockname()[:2]
    server = _Server(
        uvicorn.Config(
            app,
            http="httptools",
            lifespan="on",
            access_log=False,
            log_config=None,
            server_header=False,
            timeout_graceful_shutdown=_GRACE_S,
            # A keep-alive connection must outlive the pause between two requests of a client's pool.
            timeout_keep_alive=75,
        )
    )
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    stopping = asyncio.create_task(stop.wait())
    try:
        log.info("gateway.listening", address=f"http://{host}:{port}")
        await asyncio.wait([serving, stopping], return_when=asyncio.FIRST_COMPLETED)
        if not serving.done():
            await drain(app)
            server.should_exit = True
        await serving
    finally:
        stopping.cancel()
        serving.cancel()
        await asyncio.gather(stopping, serving, return_exceptions=True)
        listener.close()
    log.info("gateway.stopped")
    return 0 if stop.is_set() else 1


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=_BACKLOG)


def _explain(settings: Settings, error: OSError) -> str:
    where = f"{settings.gateway.host}:{settings.gateway.port}"
    if error.errno == errno.EADDRINUSE:
        return f"{where} is in use by another process; stop it, or set gateway.port to a free port (0: any)"
    return f"cannot listen on {where} ({error}); check gateway.host and gateway.port"
