"""The rig of the measurements that need another network: cuts that cut, and a line as bad as it says."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def _inside(script: str, timeout: float = 60.0) -> str:
    """Run a script in a process of its own: namespaces belong to threads, and the test's must keep its network."""
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=timeout
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.fixture(scope="module", autouse=True)
def _namespaces() -> None:
    """Skip where this machine allows no namespaces."""
    if shutil.which("nsenter") is None or shutil.which("ip") is None:
        pytest.skip("ip and nsenter are missing")
    script = "from benchmarks.namespaces import enter_private_network; enter_private_network()"
    ran = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60)
    if "NamespacesRefused" in ran.stderr:
        pytest.skip(ran.stderr.strip().splitlines()[-1])


_SETUP = """
import socket, subprocess, sys, time
from benchmarks.namespaces import enter_private_network
enter_private_network()

def serve(space, address):
    script = f"import socket\\ns = socket.create_server(('{address}', 8000))\\nprint(flush=True)\\nwhile 1: s.accept()"
    server = subprocess.Popen(space.command([sys.executable, "-c", script]), stdout=subprocess.PIPE)
    server.stdout.readline()
    return server

def reached(address, timeout=0.3):
    try:
        socket.create_connection((address, 8000), timeout).close()
    except OSError:
        return False
    return True

def until(condition, timeout=10):
    end = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < end
"""


@pytest.mark.parametrize("how", ["dropped", "black_holed"])
def test_a_wire_carries_until_it_is_cut_and_again_when_it_is_mended(how: str) -> None:
    """Both cuts let nothing through and leave nothing behind."""
    _inside(
        _SETUP
        + f"""
from benchmarks.wire import Wire
wire = Wire(1)
server = serve(wire.space, wire.there)
try:
    for _ in range(3):
        until(lambda: reached(wire.there))
        wire.cut("{how}")
        assert not any(reached(wire.there, 0.1) for _ in range(3))
        wire.mend("{how}")
finally:
    server.kill(); server.wait(); server.stdout.close(); wire.close()
"""
    )


def test_a_bad_line_delays_and_loses_packets_in_both_directions() -> None:
    """Connections get through it, slowly, and its own count says what it did."""
    said = _inside(
        _SETUP
        + """
from benchmarks.relay import BadLine
line = BadLine(seed=1)
server = serve(line.space, line.there)
try:
    until(lambda: reached(line.there))
    line.disturb(delay_ms=20, jitter_ms=10, loss=0.2)
    until(lambda: not reached(line.there, 0.015))
    end, times = time.monotonic() + 3, []
    while time.monotonic() < end:
        began = time.monotonic()
        if reached(line.there, 5):
            times.append(time.monotonic() - began)
    carried = line.disturb()
    until(lambda: reached(line.there, 0.5))
finally:
    server.kill(); server.wait(); server.stdout.close(); line.close()
assert min(times) >= 0.02, times
print(carried.packets, carried.lost, min(carried.delays_ms, default=99))
"""
    )
    packets, lost, least = said.split()
    assert int(packets) > 20
    assert 0 < int(lost) < int(packets) / 2
    assert float(least) >= 10


def test_whoever_may_make_no_namespace_is_told_how() -> None:
    """The message names the way out instead of a traceback's errno."""
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        pytest.skip("setpriv is missing")
    script = "from benchmarks.namespaces import enter_private_network; enter_private_network()"
    ran = subprocess.run(
        [setpriv, "--bounding-set=-all", "--inh-caps=-all", sys.executable, "-c", script],
        cwd=ROOT, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert "NamespacesRefused" in ran.stderr
    assert "unshare --map-root-user --net" in ran.stderr
