"""Each measurement, run once in small: it must say something, and prove what it did."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]


def _run(tmp_path: Path, *arguments: str) -> dict[str, Any]:
    report = tmp_path / "report.json"
    ran = subprocess.run(
        [sys.executable, "-m", "benchmarks", *arguments, "--json", str(report)],
        cwd=ROOT, capture_output=True, text=True, timeout=110,
    )  # fmt: skip
    if "no network namespace can be made" in ran.stderr:
        pytest.skip(ran.stderr.strip().splitlines()[-1])
    assert ran.returncode == 0, ran.stderr[-3_000:]
    figures: dict[str, Any] = json.loads(report.read_text())["figures"]
    return figures


def test_a_sentinel_is_measured_over_fake_agents(tmp_path: Path) -> None:
    """Every node is watched, nothing dies, and the sentinel's costs are there."""
    run = _run(tmp_path, "sentinel", "--nodes", "6", "--seconds", "3", "--sentinels", "1")["runs"]["1 sentinel"]
    sentinel = run["sentinels"]["s1"]
    assert sentinel["nodes_watched"] == 6
    assert sentinel["rtt_ms"]["count"] >= 6
    assert sentinel["cpu_percent_of_a_core"] > 0
    assert run["deaths"] == 0
    assert run["nodes_alive_at_the_end"] == 6


@pytest.mark.acceptance
def test_a_cut_link_is_found_and_measured(tmp_path: Path) -> None:
    """One real cut between namespaces, from the cut to the gateway's table, and the node comes back."""
    if shutil.which("nsenter") is None or shutil.which("ip") is None:
        pytest.skip("ip and nsenter are missing")
    figures = _run(tmp_path, "detect", "--count", "1", "--only", "link_black_holed")
    fault = figures["faults"]["link_black_holed"]
    assert not figures["not_injected"]
    assert fault["injections"] == 1
    assert fault["gateway_weight_0_ms"]["count"] == 1
    assert fault["tcp_silent"]["count"] == 1
    assert "got through before, and none after" in fault["proofs"][0]
