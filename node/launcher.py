"""Starts an engine process: own session, epoch mark, lifelines, no core dump, log of bounded size.

The log is a file, not a pipe: the engine must survive the agent, and a broken pipe would kill it.
"""

import asyncio
import contextlib
import os
import resource
import shutil
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import structlog

from engines import model_files
from engines.base import LaunchCommand
from engines.llamacpp import launch_command
from node import command, processes
from node.mark import VARIABLE, Mark
from node.state import NodeDir, Record
from recovery.config import NodeSettings
from recovery.errors import UnbrokenError

_LOG_BYTES = 4 * 1024 * 1024
_TAIL_BYTES = 16 * 1024
_TAIL_CHARS = 2_000
_HOOK = Path(model_files.__file__).parent / "hook"
"""Python processes of the engine run what is in here at their start: they take hold of their lifelines."""
_LIFELINES = "UNBROKEN_LIFELINES"

log = structlog.get_logger()


class StartFailed(UnbrokenError):
    """The engine did not start; the message says why and, where the engine knows, how to mend it."""


@dataclass(frozen=True, slots=True)
class Launched:
    """A process just started, or adopted: then it is no child of ours."""

    record: Record
    child: "subprocess.Popen[bytes] | None"


class EngineLog:
    """The engine's output; its file never grows past about 4 MiB, one earlier run is kept."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "engine.log"

    def begin(self) -> int:
        """Put the earlier run's output aside and return a descriptor to append to."""
        with contextlib.suppress(FileNotFoundError):
            self.path.replace(self.path.with_suffix(".log.1"))
        return os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def trim(self) -> None:
        """Drop all but the end of a file grown too big; the engine goes on appending to it."""
        with contextlib.suppress(OSError):
            if self.path.stat().st_size > _LOG_BYTES:
                end = self._end()
                os.truncate(self.path, 0)
                with self.path.open("ab") as file:
                    file.write(end)

    def tail(self, lines: int = 20) -> str:
        """Return the last lines of this run, at most 2,000 characters."""
        text = self._end().decode("utf-8", "replace")
        return "\n".join(text.strip().splitlines()[-lines:])[-_TAIL_CHARS:]

    def _end(self) -> bytes:
        try:
            with self.path.open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
                return file.read(_TAIL_BYTES)
        except OSError:
            return b""


class Launcher:
    """Starts engines of one node."""

    def __init__(self, settings: NodeSettings, home: NodeDir) -> None:
        self.log = EngineLog(home.path)
        self._settings = settings
        self._home = home
        self._count = 0

    async def launch(self, epoch: int) -> Launched:
        """Start a process under `epoch` and record it on disk; it is not ready yet. Raises StartFailed."""
        settings = self._settings
        port = settings.engine_port or _free_port(settings.engine_host)
        try:
            order = await (self._own_command(port) if settings.command else self._command(port))
        except OSError as error:
            raise StartFailed(f"node.model: {error}") from error
        lifelines = self._lifelines(epoch)
        # Settings may hold secrets (a Redis password): the engine gets none of them.
        env = {name: value for name, value in os.environ.items() if not name.startswith("UNBROKEN_")}
        env |= order.env | {VARIABLE: str(Mark(settings.id, epoch, self._home.holder))}
        if lifelines is not None:
            others = env.get("PYTHONPATH")
            env |= {_LIFELINES: str(lifelines), "PYTHONPATH": f"{_HOOK}{os.pathsep}{others}" if others else str(_HOOK)}
        child = self._spawn(order.argv, env, settings.engine_nice)
        identity = processes.identify(child.pid)
        started = identity.started if identity else 0
        host = f"[{settings.engine_host}]" if ":" in settings.engine_host else settings.engine_host
        record = Record(
            pid=child.pid,
            started=started,
            pgid=child.pid,
            epoch=epoch,
            url=f"http://{host}:{port}",
            lifeline=str(lifelines or ""),
        )
        self._home.record(record)
        return Launched(record, child)

    def sweep(self, keep: str = "") -> None:
        """Remove the lifelines of engines this agent launched, those of a living one excepted."""
        for path in _shared_memory(self._home).glob(f"{_prefix(self._home)}*"):
            if str(path) != keep:
                shutil.rmtree(path, ignore_errors=True)

    def tidy(self) -> None:
        """Trim the log, and remove the lifelines of an engine's passing helpers once they have ended."""
        self.log.trim()
        folder = self._home.engine.lifeline if self._home.engine is not None else ""
        with contextlib.suppress(OSError):
            for path in Path(folder).iterdir() if folder else ():
                if path.name.isdigit() and processes.read(int(path.name)) is None:
                    path.unlink(missing_ok=True)

    async def _command(self, port: int) -> LaunchCommand:
        """Return the adapter's command. Raises OSError without a model file."""
        settings = self._settings
        model = model_files.find(settings.model)
        return launch_command(
            python=sys.executable,
            model=model,
            alias=settings.model_name,
            host=settings.engine_host,
            port=port,
            slots=settings.slots,
            context=settings.context,
            digest=await asyncio.to_thread(model_files.digest, model),
        )

    async def _own_command(self, port: int) -> LaunchCommand:
        """Return the operator's command. Raises OSError without a model file, if it names one; SettingsError."""
        settings = self._settings
        needs_model = command.wants(settings.command, "model")
        values = {
            "host": settings.engine_host,
            "port": str(port),
            "model": str(model_files.find(settings.model)) if needs_model else "",
            "alias": settings.model_name,
            "slots": str(settings.slots),
            "context": str(settings.context),
        }
        return LaunchCommand(argv=command.fill(settings.command, values), env={})

    def _spawn(self, argv: list[str], env: dict[str, str], nice: int) -> "subprocess.Popen[bytes]":
        output = self.log.begin()
        try:
            child = subprocess.Popen(
                argv,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise StartFailed(f"{argv[0]} cannot be run: {error}") from error
        finally:
            os.close(output)
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, child.pid, nice)
            # A core dump would keep the dead engine's memory for seconds.
            resource.prlimit(child.pid, resource.RLIMIT_CORE, (0, 0))
        return child

    def _lifelines(self, epoch: int) -> Path | None:
        """Make a fresh folder for them; None where that fails: the process table tells of deaths all the same."""
        self._count += 1
        path = _shared_memory(self._home) / f"{_prefix(self._home)}{epoch}-{os.getpid()}-{self._count}"
        try:
            path.mkdir(mode=0o700)
        except OSError as error:
            log.warning("lifelines.unusable", node=self._settings.id, error=str(error))
            return None
        return path


def _shared_memory(home: NodeDir) -> Path:
    path = Path("/dev/shm")  # noqa: S108 - lifelines must be on tmpfs, and its name holds a random id
    return path if path.is_dir() else home.path


def _prefix(home: NodeDir) -> str:
    return f"unbroken-lifelines-{home.holder}-"


def _free_port(host: str) -> int:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family) as probe:
            probe.bind((host, 0))
            return int(probe.getsockname()[1])
    except OSError as error:
        raise StartFailed(f"node.engine_host: cannot listen on {host}: {error.strerror}") from error
