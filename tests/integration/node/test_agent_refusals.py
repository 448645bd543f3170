"""What an agent refuses and what it says then: settings, ports, owners, tokens, engines that cannot start."""

from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from protocol import unbroken_pb2 as pb
from protocol.channel import credentials
from recovery import leases, registry
from recovery.store import Store
from tests.rigs.agent import running_agent, until
from tests.rigs.ports import free_port


async def test_a_missing_model_file_is_named_and_nothing_is_restarted(redis_url: str, tmp_path: Path) -> None:
    """One try, then the phase, the registry and the log say what and how to mend it."""
    missing = tmp_path / "no.gguf"
    async with running_agent(redis_url, tmp_path, node__model=missing) as agent:
        report = await agent.phase(pb.PHASE_FAILED)

        assert str(missing) in report.detail
        assert "node.model" in report.detail
        assert not report.ready

        async def registered() -> bool:
            return str(missing) in (await registry.get(agent.store, "a")).detail

        await until(registered)
        assert agent.said().count("engine.start_failed") == 1


async def test_an_engine_that_dies_at_its_start_is_quoted(redis_url: str, tmp_path: Path) -> None:
    """Exit code and last words; a Start command fails with the same, and works once it is mended."""
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"not a model")
    async with running_agent(redis_url, tmp_path, node__model=broken) as agent:
        report = await agent.phase(pb.PHASE_FAILED)
        assert "exit code 4" in report.detail
        assert "is not a GGUF file" in report.detail
        assert agent.engines() == set()

        epoch = await leases.fence(agent.store, "a", 1, "job-1")
        stub = await agent.stub()
        await stub.Fence(agent.command(epoch), timeout=10)
        await stub.Reclaim(agent.command(epoch), timeout=10)
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await stub.Start(agent.command(epoch), timeout=30)

        assert failed.value.code() is grpc.StatusCode.ABORTED
        assert "is not a GGUF file" in (failed.value.details() or "")
        assert (await agent.status()).phase == pb.PHASE_FAILED
        assert (agent.engines(), agent.lifelines()) == (set(), [])


async def test_an_occupied_engine_port_is_named(redis_url: str, tmp_path: Path) -> None:
    """The engine's own words reach the status."""
    async with running_agent(redis_url, tmp_path, "a") as other:
        url = (await other.serving()).engine_url
        port = url.rpartition(":")[2]
        async with running_agent(redis_url, tmp_path, "b", node__engine_port=port) as agent:
            report = await agent.phase(pb.PHASE_FAILED)
            assert f"port {port}" in report.detail
        assert (await other.status()).ready


async def test_an_occupied_agent_port_is_refused_with_the_setting(redis_url: str, tmp_path: Path) -> None:
    """The second agent ends and names node.agent_port."""
    port = free_port()
    async with running_agent(redis_url, tmp_path, "a", node__agent_port=port) as first:
        await first.address()
        async with running_agent(redis_url, tmp_path, "b", node__agent_port=port) as second:
            assert await second.exit_code() == 2
            assert "node.agent_port" in second.said()
            assert str(port) in second.said()


async def test_a_second_agent_on_the_same_state_directory_is_refused(redis_url: str, tmp_path: Path) -> None:
    """The owner's engine does not notice."""
    async with running_agent(redis_url, tmp_path) as first:
        before = await first.serving()
        owner = first.process
        first.start()
        try:
            assert await first.exit_code() == 2
        finally:
            first.process = owner
        assert f"the agent with pid {first.pid} owns" in first.said()
        assert (await first.status()).engine_pid == before.engine_pid


async def test_a_node_held_by_another_agent_is_refused_after_one_lease_timeout(redis_url: str, tmp_path: Path) -> None:
    """Another machine, the same node id: the holder goes on, the newcomer ends with its message."""
    (tmp_path / "elsewhere").mkdir()
    short: dict[str, Any] = {"lease__lease_timeout_ms": 1_500}
    async with running_agent(redis_url, tmp_path, **short) as first:
        before = await first.serving()
        async with running_agent(redis_url, tmp_path / "elsewhere", **short) as second:
            assert await second.exit_code() == 2
            assert "its lease is held by agent" in second.said()
            assert second.engines() == set()
        after = await first.status()
        assert (after.engine_pid, after.lease_held, after.epoch) == (before.engine_pid, True, before.epoch)


async def test_a_dead_agents_lease_is_waited_out(redis_url: str, tmp_path: Path) -> None:
    """The other holder died without a word: the newcomer starts once the lease has lapsed."""
    store = Store(redis_url)
    try:
        await leases.boot(store, "a", "somebody", 0, 0, 1_000)
    finally:
        await store.aclose()
    async with running_agent(redis_url, tmp_path, lease__lease_timeout_ms=1_500) as agent:
        assert (await agent.serving()).epoch == 2


async def test_a_lease_that_a_slow_redis_may_cost_is_warned_of(redis_url: str, tmp_path: Path) -> None:
    """Below 5:1; below 3:1 is refused (requirements D3)."""
    tight: dict[str, Any] = {"lease__renew_interval_ms": 500, "lease__lease_timeout_ms": 2_000}
    async with running_agent(redis_url, tmp_path, node__model=tmp_path / "no.gguf", **tight) as agent:
        await agent.phase(pb.PHASE_FAILED)

        assert agent.said().count('"lease.tight"') == 1
        assert "lease.lease_timeout_ms is below 5" in agent.said()


async def test_a_wrong_or_missing_token_is_unauthenticated(redis_url: str, tmp_path: Path) -> None:
    """No call of any kind gets through without it, the stream included."""
    token = tmp_path / "token"
    token.write_text("right\n")
    missing = tmp_path / "no.gguf"
    async with running_agent(redis_url, tmp_path, auth__agent_token_file=token, node__model=missing) as agent:
        agent.token = "right"  # noqa: S105 - made up for this test
        assert (await agent.phase(pb.PHASE_FAILED)).node == "a"
        stub = await agent.stub()
        for presented in (None, "wrong"):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await stub.Fence(agent.command(9), timeout=5, metadata=credentials(presented))
            assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
            call = stub.Watch(timeout=5, metadata=credentials(presented))
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await call.read()
            assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
        assert (await agent.status()).epoch == 1


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"node__agent_host": "0.0.0.0"}, "auth.agent_token_file"),
        ({"redis__url": ""}, "redis.url"),
        ({"node__id": "../x"}, "node.id"),
        ({"node__id": ""}, "node.id"),
    ],
)
async def test_a_wrong_setting_is_refused_by_name(
    redis_url: str, tmp_path: Path, settings: dict[str, Any], named: str
) -> None:
    """Before anything is bound or started."""
    async with running_agent(redis_url, tmp_path, **settings) as agent:
        assert await agent.exit_code() == 2
        assert named in agent.said()
