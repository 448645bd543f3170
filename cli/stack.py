"""The embedded stack: which processes make a complete installation on one machine, and with which settings."""

import asyncio
import fcntl
import json
import os
import secrets
import shutil
import socket
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

import aiohttp

from cli.embedded import server_command, server_program
from cli.supervisor import Child, Sink, StackFailed, Supervisor
from engines import model_files
from recovery.auth import Scope, digest, new_key
from recovery.config import Settings, as_environment
from recovery.errors import SettingsError

START_TIMEOUT_S = 60.0
SHARED_NICE = 5
"""Least niceness of engines that share their machine with the whole stack."""


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where a running stack is found; kept in `stack.json` in its state directory (readable by its owner only)."""

    gateway: str
    flower: str
    redis: str
    supervisor_pid: int
    inference_key: str
    operator_key: str


class Stack:
    """A whole installation on this machine: Redis, agents, sentinel, dispatcher, workers, gateway, Flower."""

    def __init__(self, settings: Settings, sink: Sink, *, fresh: bool = False) -> None:
        """`fresh` empties the state directory first: no nodes, epochs or jobs of an earlier stack."""
        self.settings = settings
        self._fresh = fresh
        self.state_dir = settings.stack.state_dir.absolute()
        self._sink = sink
        self._lock: IO[str] | None = None
        self.supervisor: Supervisor | None = None
        self.addresses: Addresses | None = None

    async def start(self) -> Addresses:
        """Start everything; return when the gateway is ready to serve. Raises SettingsError, StackFailed."""
        settings = self.settings
        _refuse_missing_model(settings.node.model)
        for name, host, port in (
            ("gateway.port", settings.gateway.host, settings.gateway.port),
            ("stack.flower_port", settings.stack.flower_host, settings.stack.flower_port),
        ):
            _refuse_occupied(name, host, port)
        self._take_state_dir()
        self.addresses = self._prepare()
        supervisor = Supervisor(self._sink, restarts=settings.stack.restarts, period_s=settings.stack.restart_period_s)
        self.supervisor = supervisor
        env = self._environment(self.addresses)
        if not settings.redis.url:
            await supervisor.start_stage([self._redis(self.addresses)], START_TIMEOUT_S)
        await supervisor.start_stage(self._processes(env), START_TIMEOUT_S)
        return self.addresses

    async def stop(self) -> None:
        """Stop everything and give the state directory back."""
        if self.supervisor is not None:
            await self.supervisor.stop()
        (self.state_dir / "stack.json").unlink(missing_ok=True)
        if self._lock is not None:
            self._lock.close()

    def _take_state_dir(self) -> None:
        self.state_dir.mkdir(parents=True, exist_ok=True)
        # Beside the directory, not in it: the demo empties its directory.
        lock = self.state_dir.with_name(self.state_dir.name + ".lock").open("a+")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            lock.close()
            raise SettingsError(
                f"stack.state_dir {self.state_dir} belongs to a stack that is running: "
                "stop it (Ctrl-C in its terminal) or choose another directory"
            ) from error
        self._lock = lock
        if self._fresh:
            shutil.rmtree(self.state_dir)
            self.state_dir.mkdir()

    def _prepare(self) -> Addresses:
        settings = self.settings
        addresses = Addresses(
            gateway=f"http://{settings.gateway.host}:{settings.gateway.port}",
            flower=f"http://{settings.stack.flower_host}:{settings.stack.flower_port}",
            redis=settings.redis.url or f"redis://127.0.0.1:{free_port()}/0",
            supervisor_pid=os.getpid(),
            inference_key=new_key(),
            operator_key=new_key(),
        )
        _write_private(self.state_dir / "agent_token", secrets.token_urlsafe(32))
        keys = [
            {"name": "inference", "sha256": digest(addresses.inference_key), "scopes": [Scope.INFERENCE]},
            {"name": "operator", "sha256": digest(addresses.operator_key), "scopes": list(Scope)},
        ]
        _write_private(self.state_dir / "keys.json", json.dumps(keys))
        _write_private(self.state_dir / "stack.json", json.dumps(asdict(addresses)))
        return addresses

    def _environment(self, addresses: Addresses) -> dict[str, str]:
        settings, state = self.settings, self.state_dir
        auth, log, node = settings.auth, settings.log, settings.node
        if log.format == "auto" and sys.stdout.isatty():
            # The processes write into pipes; what reads them in the end is a person at our terminal.
            log = log.model_copy(update={"format": "console"})
        whole = settings.model_copy(
            update={
                "log": log,
                # An engine that computes on every core must not keep those waiting who bring its peer back.
                "node": node.model_copy(update={"engine_nice": max(node.engine_nice, SHARED_NICE)}),
                "redis": settings.redis.model_copy(update={"url": addresses.redis}),
                "stack": settings.stack.model_copy(update={"state_dir": state}),
                "auth": auth.model_copy(
                    update={
                        "keys_file": auth.keys_file or state / "keys.json",
                        "agent_token_file": auth.agent_token_file or state / "agent_token",
                    }
                ),
            }
        )
        # One thread of arithmetic per process: the engines set their own, nothing else computes.
        return {**as_environment(whole), "OMP_NUM_THREADS": "1"}

    def _redis(self, addresses: Addresses) -> Child:
        data = self.state_dir / "redis"
        data.mkdir(exist_ok=True)
        port = int(addresses.redis.rsplit(":", 1)[1].split("/")[0])

        async def answers() -> bool:
            return await _answers_ping(port)

        return Child("redis", server_command(server_program(), port, data), ready=answers)

    def _processes(self, env: dict[str, str]) -> list[Child]:
        settings = self.settings
        gateway = f"http://{settings.gateway.host}:{settings.gateway.port}"
        flower = f"http://{settings.stack.flower_host}:{settings.stack.flower_port}"

        async def serving() -> bool:
            return await _http_ok(f"{gateway}/readyz")

        async def showing() -> bool:
            return await _http_ok(f"{flower}/healthcheck")

        def unbroken(*args: str) -> Sequence[str]:
            return [sys.executable, "-m", "cli.main", *args]

        return [
            *(
                Child(f"agent-{node}", unbroken("agent"), {**env, "UNBROKEN_NODE__ID": node}, grace_s=12)
                for node in settings.stack.nodes
            ),
            Child("sentinel", unbroken("sentinel"), env),
            Child("dispatcher", unbroken("dispatcher"), env),
            Child("worker-fast", unbroken("worker", "fast"), env, grace_s=10),
            Child("worker-slow", unbroken("worker", "slow"), env, grace_s=10),
            Child("gateway", unbroken("gateway"), env, ready=serving, grace_s=12),
            Child("flower", unbroken("flower"), env, ready=showing),
        ]


def read_addresses(settings: Settings) -> Addresses:
    """Return where the running stack of this state directory is. Raises SettingsError when there is none."""
    path = settings.stack.state_dir / "stack.json"
    try:
        return Addresses(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, TypeError, json.JSONDecodeError) as error:
        raise SettingsError(
            f"no running stack was found in {settings.stack.state_dir}: start one with `unbroken up`, "
            "or name a gateway with --url and a key with --key"
        ) from error


def free_port() -> int:
    """Return a loopback port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def is_free(host: str, port: int) -> bool:
    """Whether a server could listen there now."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def _refuse_occupied(setting: str, host: str, port: int) -> None:
    if not is_free(host, port):
        variable = "UNBROKEN_" + setting.upper().replace(".", "__")
        raise SettingsError(
            f"{setting}: {host}:{port} is in use: stop what uses it, "
            f"or choose another port, e.g. {variable}={free_port()}"
        )


def _refuse_missing_model(configured: Path | None) -> None:
    try:
        model_files.find(configured)
    except model_files.ModelMissingError as error:
        raise SettingsError(f"node.model: {error}") from error


def _write_private(path: Path, text: str) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)


async def _answers_ping(port: int) -> bool:
    try:
        async with asyncio.timeout(1):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                writer.write(b"PING\r\n")
                return (await reader.read(16)).startswith(b"+PONG")
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return False


async def _http_ok(url: str) -> bool:
    timeout = aiohttp.ClientTimeout(total=2)
    try:
        async with aiohttp.ClientSession(timeout=timeout) as session, session.get(url) as response:
            return response.status == 200
    except (aiohttp.ClientError, TimeoutError, OSError):
        return False


async def wait_for_end(stack: Stack, stop: asyncio.Event) -> None:
    """Return when `stop` is set. Raises StackFailed when the stack cannot be kept running."""
    assert stack.supervisor is not None  # noqa: S101 - for the type checker: start() has returned
    failed = asyncio.create_task(stack.supervisor.failed())
    stopped = asyncio.create_task(stop.wait())
    try:
        done, _ = await asyncio.wait({failed, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if failed in done:
            raise StackFailed(failed.result())
    finally:
        for task in (failed, stopped):
            task.cancel()
