"""What an operator is told of a node whose GPU is lost."""

from typing import Any

import pytest

from recovery import jobs, leases, registry
from recovery.registry import NodeState
from recovery.store import Store
from tests.rigs.gateway import RunningGateway, running_gateway


async def node_with(store: Store, gpu: str, state: NodeState) -> None:
    """Register node a."""
    epoch = (await leases.boot(store, "a", "a", 0, 0, 60_000)).epoch
    await registry.register(store, "a", epoch, {"model": "m", "gpu": gpu, "gpu_detail": "GPU-1: GPU is lost"})
    await registry.set_state(store, "a", epoch, state)


async def order(gateway: RunningGateway, **fields: Any) -> tuple[int, dict[str, Any]]:
    """Ask for a recovery of node a."""
    async with gateway.session.post(f"{gateway.url}/v1/recovery/jobs", json={"node": "a", **fields}) as answer:
        return answer.status, await answer.json(content_type=None)


async def test_a_dry_run_says_that_the_gpu_needs_a_reset(redis_url: str, store: Store) -> None:
    """Of a healthy GPU it says nothing."""
    await node_with(store, "GPU_LOST", NodeState.ALIVE)
    async with running_gateway(redis_url) as gateway:
        status, plan = await order(gateway, dry_run=True)
        assert status == 200
        assert "GPU-1: GPU is lost" in plan["needs_operator"]
        assert "reset of the GPU or a reboot of the host" in plan["needs_operator"]
        await registry.write(store, "a", 1, {"gpu": "GPU_OK"})
        assert (await order(gateway, dry_run=True))[1]["needs_operator"] == ""


@pytest.mark.parametrize(
    ("gpu", "state", "status"),
    [
        ("GPU_LOST", NodeState.NEEDS_OPERATOR, 409),
        ("GPU_LOST", NodeState.ALIVE, 202),  # its requests must move all the same
        ("GPU_OK", NodeState.NEEDS_OPERATOR, 202),
        ("TELEMETRY_LOST", NodeState.NEEDS_OPERATOR, 202),
    ],
)
async def test_a_recovery_is_refused_when_it_could_change_nothing(
    redis_url: str, store: Store, gpu: str, state: NodeState, status: int
) -> None:
    """The node is fenced already, and no engine would be started on its GPU."""
    await node_with(store, gpu, state)
    async with running_gateway(redis_url) as gateway:
        said, answer = await order(gateway)
        assert said == status
        if status == 409:
            assert "reset of the GPU" in answer["detail"]
            assert await jobs.newest(store) == []
