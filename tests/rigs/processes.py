"""Small real processes for tests of what is seen of processes: started, spoken to by a line, killed and reaped."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from node import processes
from node.processes import Identity

HOOK = Path(__file__).parents[2] / "engines" / "hook"


class Program:
    """One running program."""

    def __init__(self, child: "subprocess.Popen[str]") -> None:
        self.child = child
        found = processes.identify(child.pid)
        assert found is not None
        self.identity: Identity = found

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.child.pid

    def line(self) -> str:
        """Read a line of its output."""
        assert self.child.stdout is not None
        return self.child.stdout.readline().strip()

    def tell(self, line: str = "") -> None:
        """Write a line to its input."""
        assert self.child.stdin is not None
        self.child.stdin.write(f"{line}\n")
        self.child.stdin.flush()

    def leave(self) -> None:
        """Let it end by itself, so that it takes its semaphores with it."""
        self.tell()
        self.child.wait(30)

    def children(self) -> list[Identity]:
        """Return its living children."""
        return [
            Identity(stat.pid, stat.started)
            for stat in processes.everything()
            if stat.parent == self.pid and stat.living
        ]


@contextmanager
def program(*argv: str, lifelines: Path | None = None) -> Iterator[Program]:
    """Run a program in a session of its own; with `lifelines` its Python processes hold theirs, as an engine's do."""
    env = dict(os.environ)
    if lifelines is not None:
        env |= {"PYTHONPATH": str(HOOK), "UNBROKEN_LIFELINES": str(lifelines)}
    child = subprocess.Popen(
        argv, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        yield Program(child)
    finally:
        for stat in list(processes.everything()):
            if stat.session == child.pid and stat.pid != child.pid:
                processes.send(Identity(stat.pid, stat.started), signal.SIGKILL)
        child.kill()
        child.communicate(timeout=10)


@contextmanager
def script(code: str, lifelines: Path | None = None) -> Iterator[Program]:
    """Run Python code, once it has said a first line."""
    with program(sys.executable, "-c", code, lifelines=lifelines) as running:
        assert running.line() == "ready"
        yield running
