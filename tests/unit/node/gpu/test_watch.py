"""The watch over the GPUs: what it tells, and when it lets go of the driver."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from node.gpu import account
from node.gpu.client import Deadlines
from node.gpu.health import State
from node.gpu.watch import GpuWatch, Pace
from protocol import unbroken_pb2 as pb
from recovery.stopping import stop_tasks
from tests.rigs.agent import until
from tests.rigs.fake_pynvml import FakeNvml, gpu

QUICK = Pace(ok=0.05, again=0.02, telemetry_lost=0.05, lost=0.05, none=0.05)
SHORT = Deadlines(answer=0.3, fresh=1.0, cold=2.0)


@contextlib.asynccontextmanager
async def watching(
    lock: Path, wanted: list[str] | None = None, pace: Pace = QUICK
) -> AsyncIterator[tuple[GpuWatch, list[State]]]:
    """Watch, and note each state told."""
    told: list[State] = []
    watch = GpuWatch("a", lambda: 1, wanted, lambda: told.append(watch.health.state), lock, pace, SHORT)
    task = asyncio.create_task(watch.run())
    try:
        yield watch, told
    finally:
        await stop_tasks(task)


async def reached(watch: GpuWatch, state: State) -> None:
    """Wait until the watch sees a state."""

    async def there() -> bool:
        return watch.health.state is state

    await until(there, 20)


async def test_a_driver_that_hangs_is_unresponsive_and_recovers_by_itself(nvml: FakeNvml, tmp_path: Path) -> None:
    """One stuck helper at most, though the driver is asked again and again."""
    async with watching(tmp_path / "lock") as (watch, told):
        await reached(watch, State.OK)
        nvml.save(block=True, stay_s=60)
        await reached(watch, State.DRIVER_UNRESPONSIVE)
        await asyncio.sleep(1.0)
        assert len(nvml.blocked()) == 1
        report = account.fill(pb.NodeReport(), watch.health, devices=True)
        assert (report.gpu, report.temperature_c) == (pb.GPU_STATE_DRIVER_UNRESPONSIVE, 0.0)
        assert {each.state for each in report.gpus} == {pb.GPU_STATE_DRIVER_UNRESPONSIVE}
        assert not report.gpus[0].HasField("memory_used")
        nvml.save(block=False)
        nvml.release()
        await reached(watch, State.OK)
    assert told == [State.OK, State.DRIVER_UNRESPONSIVE, State.OK]


async def test_helpers_that_can_be_killed_do_not_pile_up(nvml: FakeNvml, tmp_path: Path) -> None:
    """Each silent one is gone before the next is started."""
    async with watching(tmp_path / "lock") as (watch, _):
        await reached(watch, State.OK)
        nvml.save(block=True)
        await reached(watch, State.DRIVER_UNRESPONSIVE)
        blocked = nvml.blocked()
        assert len(blocked) >= 2
        assert sum(Path(f"/proc/{pid}").exists() for pid in blocked) <= 1
        assert len(watch.helper_pids) <= 1


async def test_a_lost_gpu_is_told_and_its_driver_let_go_of(nvml: FakeNvml, tmp_path: Path) -> None:
    """While anybody has the driver open, the GPU cannot be reset."""
    async with watching(tmp_path / "lock", ["1"], Pace(ok=0.05, again=0.02, lost=60.0)) as (watch, _):
        await reached(watch, State.OK)
        nvml.xid(79, index=0)
        nvml.save(devices=[gpu(0, handle="GPU_IS_LOST"), gpu(1)])
        await asyncio.sleep(0.3)
        assert watch.health.state is State.OK
        nvml.xid(95, index=1)
        await reached(watch, State.LOST)

        async def let_go() -> bool:
            return watch.helper_pids == []

        await until(let_go)
        report = account.fill(pb.NodeReport(), watch.health, devices=True)
        assert (report.gpu, [each.state for each in report.gpus]) == (pb.GPU_STATE_LOST, [pb.GPU_STATE_LOST])
        assert "Xid 95" in report.gpus[0].detail


async def test_a_report_has_figures_where_they_are_known(nvml: FakeNvml, tmp_path: Path) -> None:
    """And the hottest device's temperature, the free memory of all; single devices only on request."""
    nvml.save(devices=[gpu(0), gpu(1, utilisation="NOT_SUPPORTED", memory=[50_000, 10_000])])
    async with watching(tmp_path / "lock") as (watch, _):
        await reached(watch, State.OK)
        report = account.fill(pb.NodeReport(), watch.health, devices=True)
        assert (report.gpu, report.free_bytes, report.temperature_c) == (pb.GPU_STATE_OK, 100_000, 41.0)
        assert round(report.gpus[0].utilisation, 2) == 0.3
        assert not report.gpus[1].HasField("utilisation")
        assert list(report.gpus[1].pids) == [4711]
        assert "utilisation (Not Supported)" in report.gpus[1].detail
        assert not account.fill(pb.NodeReport(), watch.health, devices=False).gpus
        assert account.registry_fields(watch.health)["gpu"] == "GPU_OK"


async def test_a_node_without_gpus_starts_no_helper(nvml: FakeNvml, tmp_path: Path) -> None:
    """An engine on the CPU costs no extra process."""
    async with watching(tmp_path / "lock", []) as (watch, told):
        await asyncio.sleep(0.3)
        assert (watch.helper_pids, told, watch.health.state) == ([], [], State.NONE)
    assert not (tmp_path / "lock").exists()
