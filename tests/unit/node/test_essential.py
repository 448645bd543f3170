"""Which processes of an engine count, found in real process trees."""

import sys
from pathlib import Path

from node.essential import essential, uses_gpu
from tests.rigs.processes import program, script

SPAWNS = """
import multiprocessing, sys, time
from multiprocessing import resource_tracker

def work(said):
    said.set()
    time.sleep(60)

def main(method):
    context = multiprocessing.get_context(method)
    said = context.Event()
    worker = context.Process(target=work, args=(said,), daemon=True)
    worker.start()
    resource_tracker.ensure_running()
    said.wait()
    print("ready", flush=True)
    print(worker.pid, flush=True)
    sys.stdin.readline()

if __name__ == "__main__":
    main({method!r})
"""
HELPER = "import subprocess, sys; subprocess.Popen({argv}); print('ready', flush=True); sys.stdin.readline()"


def started_by(tmp_path: Path, method: str) -> tuple[set[int], int, int, int]:
    """Return the essential pids of an engine with one worker, its own pid, the worker's, and the size of its tree."""
    file = tmp_path / f"{method}.py"
    file.write_text(SPAWNS.replace("{method!r}", repr(method)))
    with program(sys.executable, str(file)) as engine:
        assert engine.line() == "ready"
        worker = int(engine.line())
        found = {one.pid for one in essential(engine.identity)}
        size = 1 + len(engine.children())
        engine.leave()
        return found, engine.pid, worker, size


def test_a_spawned_worker_counts_and_the_resource_tracker_does_not(tmp_path: Path) -> None:
    """vLLM's way of starting its engine core."""
    found, main, worker, size = started_by(tmp_path, "spawn")

    assert (found, size) == ({main, worker}, 3)


def test_a_worker_made_by_a_fork_server_counts_and_the_server_does_not(tmp_path: Path) -> None:
    """Both have the same command line."""
    found, main, worker, _ = started_by(tmp_path, "forkserver")

    assert found == {main, worker}


def test_programs_that_compile_or_look_at_devices_do_not_count(tmp_path: Path) -> None:
    """They run for seconds, and may be at it just when the engine becomes ready."""
    compiler = tmp_path / "nvcc"
    compiler.symlink_to("/bin/sleep")
    with script(HELPER.format(argv=[str(compiler), "60"])) as engine:
        assert len(engine.children()) == 1
        assert essential(engine.identity) == {engine.identity}


def test_a_pool_of_compilers_does_not_count_with_all_below_it(tmp_path: Path) -> None:
    """Torch ends its compile workers by itself."""
    pool = tmp_path / "torch" / "_inductor" / "compile_worker"
    pool.mkdir(parents=True)
    main = pool / "__main__.py"
    main.write_text("import subprocess; subprocess.run(['/bin/sleep', '60'])")
    with script(HELPER.format(argv=[sys.executable, str(main)])) as engine:
        assert essential(engine.identity) == {engine.identity}


def test_an_engine_uses_a_gpu_when_its_driver_is_loaded(tmp_path: Path) -> None:
    """Else CPU time is work."""
    driver = tmp_path / "libcuda.so.1"
    driver.write_bytes(b"\0" * 4096)
    maps = f"import mmap; file = open({str(driver)!r}, 'r+b'); held = mmap.mmap(file.fileno(), 0);"
    waits = "print('ready', flush=True); import sys; sys.stdin.readline()"
    with script(maps + waits) as on_gpu, script(waits) as on_cpu:
        assert uses_gpu(on_gpu.identity)
        assert not uses_gpu(on_cpu.identity)
