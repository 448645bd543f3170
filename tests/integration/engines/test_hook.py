"""The hook in an engine's Python processes: each holds a lifeline, and notices nothing of it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from engines import lifeline
from tests.rigs.processes import HOOK, program

WORKERS = """
import multiprocessing, os, sys

def work(said, done):
    said.put(os.getpid())
    done.wait()

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    said, done = context.Queue(), context.Event()
    worker = context.Process(target=work, args=(said, done))
    worker.start()
    print("ready", os.getpid(), said.get(), flush=True)
    sys.stdin.readline()
    done.set()
    worker.join()
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_every_python_process_of_an_engine_holds_its_own_lifeline(tmp_path: Path, method: str) -> None:
    """Main process and worker, however it was made."""
    folder = tmp_path / "lifelines"
    folder.mkdir()
    file = tmp_path / "engine.py"
    file.write_text(WORKERS)
    with program(sys.executable, str(file), method, lifelines=folder) as engine:
        pids = engine.line().split()[1:]

        assert len(pids) == 2
        assert all(lifeline.is_held(folder / pid) for pid in pids)
        engine.leave()


@pytest.mark.parametrize("folder", [None, "", "/no/such/folder"])
def test_without_a_folder_for_lifelines_nothing_is_said_and_nothing_fails(folder: str | None) -> None:
    """An engine must never fail for being watched."""
    result = run("print('served')", {} if folder is None else {"UNBROKEN_LIFELINES": folder})

    assert (result.returncode, result.stdout, result.stderr) == (0, "served\n", "")


def test_the_environments_own_sitecustomize_runs_as_well(tmp_path: Path) -> None:
    """Ours stands before it on the path."""
    (tmp_path / "sitecustomize.py").write_text("import builtins; builtins.ran = 1")
    path = os.pathsep.join([str(HOOK), str(tmp_path)])

    result = run("import sitecustomize; print(ran, sitecustomize.__file__)", {"PYTHONPATH": path})

    assert result.stdout.split() == ["1", str(tmp_path / "sitecustomize.py")]


def run(code: str, env: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    """Run Python under the hook."""
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(HOOK), **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
