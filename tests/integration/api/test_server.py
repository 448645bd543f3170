"""The gateway as a process: start, occupied port, orderly end."""

import asyncio
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from api import server
from recovery.config import Settings
from recovery.errors import SettingsError
from recovery.store import Store
from tests.rigs.engine import RunningEngine
from tests.rigs.gateway import MODEL, register, running_gateway, until
from tests.rigs.ports import free_port
from tests.rigs.streams import collect_raw


def _settings(redis_url: str, port: int) -> Settings:
    gateway: Any = {"port": port}
    redis: Any = {"url": redis_url}
    return Settings(redis=redis, gateway=gateway)


async def test_an_occupied_port_is_named_with_its_setting(redis_url: str) -> None:
    """The message says what and how to mend."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(SettingsError, match=rf"127\.0\.0\.1:{port} .*gateway\.port"):
            await server.run(_settings(redis_url, port), asyncio.Event())


async def test_a_stopping_gateway_ends_its_streams_with_an_error(
    redis_url: str, store: Store, steady: RunningEngine
) -> None:
    """New work is refused, running streams get a few seconds, then one error event: never a silent end."""
    await register(store, "a", steady.url)
    async with running_gateway(redis_url) as gateway:
        await gateway.ready()
        body = {"model": MODEL, "prompt": "Once upon a time", "max_tokens": 900, "ignore_eos": True}
        began = asyncio.Event()
        running = asyncio.create_task(
            collect_raw(gateway.session, gateway.url, body, lambda _got: began.set(), "completions")
        )
        await asyncio.wait_for(began.wait(), 10)
        stopped = time.monotonic()
        gateway.stop.set()

        async def refusing() -> bool:
            asked = {"model": MODEL, "prompt": "x"}
            async with gateway.session.post(f"{gateway.url}/v1/completions", json=asked) as answer:
                return answer.status == 503

        await until(refusing, 3)
        got = await running
        assert (got.error, got.done, got.finishes) == ("gateway_stopping", 0, [])
        assert len(got.text) > 10
        assert await asyncio.wait_for(gateway.task, 10) == 0
        assert time.monotonic() - stopped < 10


async def test_the_process_serves_and_ends_on_sigterm(redis_url: str, tmp_path: Path) -> None:
    """`python -m api` with settings from the environment; exit code 0."""
    port = free_port()
    env = {**os.environ, "UNBROKEN_REDIS__URL": redis_url, "UNBROKEN_GATEWAY__PORT": str(port)}
    with (tmp_path / "log").open("wb") as log:
        # Starting a process does not block for long enough to matter here.
        process = subprocess.Popen([sys.executable, "-m", "api"], env=env, stdout=log, stderr=log)  # noqa: ASYNC220
    try:
        async with aiohttp.ClientSession() as session:

            async def healthy() -> bool:
                assert process.poll() is None, (tmp_path / "log").read_text()
                try:
                    async with session.get(f"http://127.0.0.1:{port}/healthz") as answer:
                        return answer.status == 200
                except aiohttp.ClientError:
                    return False

            await until(healthy, 20)
        process.terminate()
        assert await asyncio.to_thread(process.wait, 10) == 0
    finally:
        process.kill()
        process.wait(10)
    said = (tmp_path / "log").read_text()
    assert "gateway.listening" in said
    assert "Traceback" not in said
