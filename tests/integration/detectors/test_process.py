"""The sentinel as a process: starts by its module name, ends on SIGTERM, refuses bad settings."""

import asyncio
import os
import sys
from pathlib import Path

import pytest

from recovery.registry import NodeState
from recovery.store import Store
from tests.integration.detectors.test_sentinel import until_state
from tests.rigs.fake_agent import fake_agent

ROOT = Path(__file__).parents[3]


async def start(**environment: str) -> asyncio.subprocess.Process:
    """Start `python -m detectors`."""
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "detectors",
        cwd=ROOT,
        env={**os.environ, **environment},
        stderr=asyncio.subprocess.PIPE,
    )


async def test_the_process_judges_and_ends_on_sigterm(redis_url: str, store: Store) -> None:
    """Exit code 0, and one JSON line per event."""
    async with fake_agent("a") as agent:
        await agent.join(store)
        process = await start(UNBROKEN_REDIS__URL=redis_url)
        try:
            await until_state(store, NodeState.ALIVE)
            process.terminate()
            _, said = await asyncio.wait_for(process.communicate(), 10)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    assert process.returncode == 0
    assert '"event": "sentinel.watches"' in said.decode()
    assert '"event": "sentinel.stopped"' in said.decode()


@pytest.mark.parametrize(
    ("name", "value", "field"),
    [
        ("UNBROKEN_HEARTBEAT__FAIL_THRESHOLD", "0", "heartbeat.fail_threshold"),
        ("UNBROKEN_AUTH__AGENT_TOKEN_FILE", "/nowhere/token", "auth.agent_token_file"),
    ],
)
async def test_wrong_settings_are_refused_by_name(name: str, value: str, field: str) -> None:
    """Exit code 2 and the field."""
    process = await start(**{"UNBROKEN_REDIS__URL": "redis://127.0.0.1:1/0", name: value})
    _, said = await asyncio.wait_for(process.communicate(), 20)
    assert process.returncode == 2
    assert field in said.decode()
