"""`unbroken up` and `unbroken demo` as a user runs them: clean ends, and refusals that say what to do."""

import asyncio
import json
import os
import signal
import socket
from pathlib import Path

import pytest

from tests.rigs.command import processes_naming, unbroken
from tests.rigs.ports import free_port
from tests.rigs.stack import until

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(240)]


@pytest.fixture
def env() -> dict[str, str]:
    """Ports of this test's own."""
    return {
        "UNBROKEN_GATEWAY__PORT": str(free_port()),
        "UNBROKEN_STACK__FLOWER_PORT": str(free_port()),
    }


async def test_demo_shows_a_whole_answer_and_ends_well(tmp_path: Path, env: dict[str, str]) -> None:
    """`demo --once --json` exits with 0, says what it measured, and leaves nothing running."""
    async with unbroken("demo", "--once", "--json", "out.json", env=env, cwd=tmp_path) as demo:
        assert await demo.ended(180) == 0, demo.output
    figures = json.loads((tmp_path / "out.json").read_text())
    assert figures["streams"] == 3
    assert figures["streams_on_killed_engine"] >= 1
    assert (figures["lost"], figures["duplicated"], figures["mismatched"]) == (0, 0, 0)
    assert figures["gap_ms"] > 0
    assert figures["job"]["state"] == "succeeded"
    assert set(figures["job"]["steps"]) == {
        "fence", "requeue", "reclaim", "restart", "warm_up", "requeue_waiting",
    }  # fmt: skip
    assert "kill -9" in demo.output
    assert "PROBATION" in demo.output
    assert processes_naming(str(tmp_path)) == {}


async def test_ctrl_c_stops_everything(tmp_path: Path, env: dict[str, str]) -> None:
    """SIGINT ends the stack with code 0; no process, lock or socket of it stays."""
    async with unbroken("up", env=env, cwd=tmp_path) as up:
        await up.said("unbroken is up")
        await until(lambda: len(processes_naming(str(tmp_path))) >= 9, 20, "all processes of the stack")
        up.process.send_signal(signal.SIGINT)
        assert await up.ended(40) == 0, up.output
    assert processes_naming(str(tmp_path)) == {}
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", int(env["UNBROKEN_GATEWAY__PORT"])))
    assert list(Path("/dev/shm").glob(f"*{tmp_path.name}*")) == []


async def test_second_stack_in_the_same_directory_is_refused(tmp_path: Path, env: dict[str, str]) -> None:
    """Two stacks must not share one state; and a stack that was SIGKILLed does not block the next."""
    async with unbroken("up", env=env, cwd=tmp_path) as first:
        await first.said("unbroken is up")
        other = {"UNBROKEN_GATEWAY__PORT": str(free_port()), "UNBROKEN_STACK__FLOWER_PORT": str(free_port())}
        async with unbroken("up", env=other, cwd=tmp_path) as second:
            assert await second.ended(30) == 2
        assert "stack.state_dir" in second.output
        # When the first supervisor is killed outright
        os.kill(first.process.pid, signal.SIGKILL)
        await first.ended(30)
        # Then its processes end by themselves
        await until(lambda: processes_naming(str(tmp_path)) == {}, 40, "the end of all processes")


async def test_occupied_port_names_the_setting_and_a_way_out(tmp_path: Path, env: dict[str, str]) -> None:
    """The message names the field and offers another port."""
    with socket.create_server(("127.0.0.1", int(env["UNBROKEN_GATEWAY__PORT"]))):
        async with unbroken("up", env=env, cwd=tmp_path) as up:
            assert await up.ended(30) == 2
    assert "gateway.port" in up.output
    assert "UNBROKEN_GATEWAY__PORT=" in up.output


async def test_missing_model_file_is_named_before_anything_starts(tmp_path: Path, env: dict[str, str]) -> None:
    """The message names the file and the remedy."""
    async with unbroken("up", env={**env, "UNBROKEN_NODE__MODEL": "/nowhere/model.gguf"}, cwd=tmp_path) as up:
        assert await up.ended(30) == 2
    assert "node.model" in up.output
    assert "/nowhere/model.gguf" in up.output


async def test_engine_that_dies_at_start_is_explained_and_not_restarted_for_ever(
    tmp_path: Path, env: dict[str, str]
) -> None:
    """A model file that is none: the restart budget ends it, and the reason is to be read."""
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + bytes(1_000))
    settings = {"UNBROKEN_NODE__MODEL": str(broken), "UNBROKEN_STACK__NODES": '["a"]'}
    async with unbroken("up", env={**env, **settings}, cwd=tmp_path) as up:
        await up.said("QUARANTINED", 120)
        starts = up.output.count("engine.start_failed")
        await asyncio.sleep(5)
        assert up.output.count("engine.start_failed") == starts, "it is started again and again"
        assert 1 <= starts <= 4
        assert "broken.gguf" in up.output


async def test_settings_file_with_a_wrong_field_is_refused_by_name(tmp_path: Path, env: dict[str, str]) -> None:
    """The field and the reason are in one line."""
    (tmp_path / "unbroken.toml").write_text("[heartbeat]\ninterval_msec = 100\n")
    async with unbroken("up", env=env, cwd=tmp_path) as up:
        assert await up.ended(30) == 2
    assert "heartbeat.interval_msec: there is no such setting" in up.output
