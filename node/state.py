"""What an agent keeps on disk: who it is, the highest epoch it has seen, and the engine it launched.

`flock` on a never-recreated file gives one owner per node and machine; the kernel releases it.
"""

import contextlib
import fcntl
import os
import re
import uuid
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import orjson

from node.processes import Identity
from recovery.errors import SettingsError, UnbrokenError

_NODE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class NodeOwned(UnbrokenError):
    """Another agent on this machine owns this node's state directory."""


class StateDamaged(UnbrokenError):
    """The agent's state file cannot be read."""


@dataclass(frozen=True, slots=True)
class Record:
    """An engine process as it was launched."""

    pid: int
    started: int
    """Start time in clock ticks since boot, from /proc/PID/stat."""
    pgid: int
    epoch: int
    url: str
    lifeline: str = ""
    restart_ms: int = 0

    @property
    def identity(self) -> Identity:
        """The process, recycled pids excluded."""
        return Identity(self.pid, self.started)


@dataclass(frozen=True, slots=True)
class State:
    """Content of state.json."""

    floor: int = 0
    """Highest epoch seen; commands below it are refused, and it never goes back."""
    engine: Record | None = None


class NodeDir:
    """One node's state directory, owned by this process until `close`."""

    def __init__(self, path: Path, lock: int, holder: str, state: State) -> None:
        self.path = path
        self.holder = holder
        self._lock = lock
        self._state = state

    @classmethod
    def open(cls, root: Path, node: str) -> "NodeDir":
        """Take `root`/nodes/`node`. Raises NodeOwned, StateDamaged, SettingsError (node.id, stack.state_dir)."""
        if not node:
            raise SettingsError("node.id: must be given: it names the node this agent is for")
        if not _NODE_ID.fullmatch(node):
            raise SettingsError(f"node.id: {node!r} must be 1 to 64 letters, digits, '.', '_' or '-'")
        path = root.absolute() / "nodes" / node
        try:
            path.mkdir(parents=True, exist_ok=True)
            lock = os.open(path / "owner.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise SettingsError(f"stack.state_dir: {path} cannot be used: {error.strerror}") from error
        try:
            _own(lock, path, node)
            return cls(path, lock, _holder(path / "holder"), _load(path / "state.json"))
        except BaseException:
            os.close(lock)
            raise

    @property
    def floor(self) -> int:
        """Highest epoch seen."""
        return self._state.floor

    @property
    def engine(self) -> Record | None:
        """The engine last launched, until it is proven gone."""
        return self._state.engine

    def raise_floor(self, epoch: int) -> None:
        """Remember an epoch, on disk before this returns; a lower one changes nothing."""
        if epoch > self._state.floor:
            self._save(replace(self._state, floor=epoch))

    def record(self, engine: Record | None) -> None:
        """Remember the engine, or that there is none."""
        if engine != self._state.engine:
            self._save(replace(self._state, engine=engine))

    def close(self) -> None:
        """Give the directory up."""
        os.close(self._lock)

    def _save(self, state: State) -> None:
        write_atomically(self.path / "state.json", orjson.dumps(asdict(state)))
        self._state = state


def write_atomically(path: Path, content: bytes) -> None:
    """Replace a file so that a crash at any moment leaves the old content or the new, never a mixture."""
    temporary = path.with_name(f".{path.name}.new")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _own(lock: int, path: Path, node: str) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        owner = os.pread(lock, 32, 0).decode("ascii", "replace").strip() or "unknown"
        raise NodeOwned(
            f"node {node}: the agent with pid {owner} owns {path}; stop it, or choose another node.id"
        ) from error
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)


def _holder(path: Path) -> str:
    with contextlib.suppress(OSError):
        known = path.read_text(encoding="ascii").strip()
        if known:
            return known
    fresh = uuid.uuid4().hex
    write_atomically(path, fresh.encode())
    return fresh


def _load(path: Path) -> State:
    try:
        content = orjson.loads(path.read_bytes())
        engine = content["engine"]
        return State(int(content["floor"]), Record(**engine) if engine else None)
    except FileNotFoundError:
        return State()
    except (OSError, ValueError, KeyError, TypeError) as error:
        # To go on without the floor could revive a fenced epoch.
        raise StateDamaged(f"{path}: {error}; repair it, or remove it once no engine of this node runs") from error
