"""`python -m node.gpu [DEVICE …]`: what an agent would see of this host's GPUs, as JSON; for an operator's eyes."""

import asyncio
import json
import os
import sys
import time
from dataclasses import asdict

from node.gpu.client import Client, Silent
from node.gpu.devices import visible
from node.gpu.health import Health


async def look(names: list[str]) -> dict[str, object]:
    """Read once more than a doubtful reading needs; DEVICE is an index or a UUID, else CUDA_VISIBLE_DEVICES counts."""
    health = Health(names or visible(os.environ.get("CUDA_VISIBLE_DEVICES")))
    client = Client(health.xid)
    took_ms: list[float] = []
    try:
        for _ in range(2):
            began = time.monotonic()
            try:
                health.answer(await client.ask(health.wanted))
            except Silent as silence:
                health.silence(str(silence))
            took_ms.append(round((time.monotonic() - began) * 1_000, 1))
    finally:
        client.close()
    return {
        "state": health.state.value or "none",
        "detail": health.detail,
        "devices": [asdict(device) for device in health.devices],
        "took_ms": took_ms,
    }


if __name__ == "__main__":
    print(json.dumps(asyncio.run(look(sys.argv[1:])), indent=2))  # noqa: T201 - its purpose
