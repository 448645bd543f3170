"""The agent with a real engine beside a GPU that is lost, unreadable, or behind a driver that hangs; NVML is a fake."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from engines import connect
from engines.base import Generation
from engines.llamacpp import open_session
from node import processes
from protocol import unbroken_pb2 as pb
from protocol import unbroken_pb2_grpc as rpc
from protocol.channel import OPERATOR_KEY
from recovery import jobs, registry
from recovery.jobs import JobState
from recovery.registry import NodeState
from tests.rigs import fake_pynvml
from tests.rigs.agent import RunningAgent, running_agent, until
from tests.rigs.deaths import ended, report_death
from tests.rigs.fake_pynvml import FakeNvml, gpu
from tests.rigs.valkey import Valkey
from tests.rigs.workers import running_workers


class Beats:
    """A Watch stream: pings on demand, notices collected."""

    def __init__(self, stub: rpc.AgentStub) -> None:
        self.notices: list[pb.Notice] = []
        self._call = stub.Watch()
        self._seq = 0

    async def ping(self) -> pb.NodeReport:
        """Send a ping and return its report."""
        self._seq += 1
        await self._call.write(pb.Ping(seq=self._seq, sentinel="test"))
        while True:
            beat = await asyncio.wait_for(self._call.read(), 5)
            assert beat is not grpc.aio.EOF
            if beat.WhichOneof("kind") == "pong":
                report: pb.NodeReport = beat.pong.report
                return report
            self.notices.append(beat.notice)

    async def until_gpu(self, state: "pb.GpuState", said: Any = str) -> pb.NodeReport:
        """Ping until the GPU has a state."""

        async def there() -> pb.NodeReport | None:
            report = await self.ping()
            return report if report.gpu == state else None

        return await until(there, 30, said)

    def close(self) -> None:
        """End the stream."""
        self._call.cancel()


@pytest.fixture
def nvml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    """Four healthy GPUs, for every process started from here."""
    fake = FakeNvml(tmp_path / "nvml.json", *map(gpu, range(4)))
    monkeypatch.setenv(fake_pynvml.STATE, str(fake.path))
    monkeypatch.setenv("NVML_MODULE", fake_pynvml.MODULE)
    return fake


@contextlib.asynccontextmanager
async def node_on(
    index: int, redis_url: str, tmp_path: Path, node: str = "a"
) -> AsyncIterator[tuple[RunningAgent, Beats]]:
    """Run a node that uses one of the GPUs; its engine serves and its GPU is known."""
    async with running_agent(redis_url, tmp_path, node, node__devices=f'["{index}"]') as agent:
        beats = Beats(await agent.stub())
        try:
            await agent.serving()
            yield agent, beats
        finally:
            beats.close()


async def generates(url: str) -> int:
    """Have an engine generate a little and return the number of tokens."""
    async with open_session() as session:
        engine = connect("llamacpp", url, session)
        order = Generation(await engine.tokenize("The sun", 10), 24, sampling={"temperature": 0}, request_id="r")
        count = 0
        async for chunks in engine.generate(order, 30):
            count += sum(len(chunk.ids) for chunk in chunks)
        return count


async def registered(agent: RunningAgent, state: str) -> registry.Node:
    """Wait until the registry shows a state of the node's GPU."""

    async def there() -> registry.Node | None:
        node = await registry.get(agent.store, agent.node)
        return node if node.gpu == state else None

    return await until(there, 20, agent.said)


async def test_a_lost_gpu_costs_only_the_node_that_uses_it_and_no_start_is_tried(
    own_valkey: Valkey, tmp_path: Path, nvml: FakeNvml
) -> None:
    """Fence and requeue happen, then an operator is needed; after the reset a recovery by hand brings it back."""
    url = own_valkey.url
    (tmp_path / "workers").mkdir()
    async with node_on(1, url, tmp_path, "a") as (healthy, beats_a), node_on(2, url, tmp_path, "b") as (hurt, beats_b):
        before = await beats_a.until_gpu(pb.GPU_STATE_OK, healthy.said)
        was = await beats_b.until_gpu(pb.GPU_STATE_OK, hurt.said)
        status = await hurt.status()
        assert [each.uuid for each in status.gpus] == [gpu(2)["uuid"]]
        assert (status.gpus[0].memory_used, status.free_bytes, status.temperature_c) == (20_000, 60_000, 42.0)

        nvml.save(devices=[gpu(0), gpu(1), gpu(2, handle="GPU_IS_LOST", uuid="GPU_IS_LOST"), gpu(3)])

        lost = await beats_b.until_gpu(pb.GPU_STATE_LOST, hurt.said)
        assert (lost.phase, lost.ready) == (pb.PHASE_DOWN, False)
        assert "GPU is lost" in lost.gpu_detail
        assert lost.detail == lost.gpu_detail
        [notice] = [each for each in beats_b.notices if each.kind == pb.NOTICE_KIND_ENGINE_DOWN]
        assert (notice.cause, notice.evidence, notice.epoch) == ("gpu_lost", lost.gpu_detail, 1)
        assert "GPU is lost" in (await registered(hurt, "GPU_LOST")).extra["gpu_detail"]
        with running_workers(url, tmp_path / "workers"):
            job = await ended(hurt.store, await report_death(hurt.store, "b", 1), 60)
            assert (job.state, job.steps["restart"].attempts) == (JobState.NEEDS_OPERATOR, 1), job.error
            assert job.steps["requeue"].state == "succeeded"
            assert "reset the GPU or reboot the host" in job.error
            node = await registry.get(hurt.store, "b")
            assert (node.state, node.epoch) == (NodeState.NEEDS_OPERATOR, 2)
            assert hurt.engines() == set()
            assert hurt.said().count('"engine.launched"') == 1

            other = await beats_a.ping()
            assert (other.gpu, other.ready, other.engine_pid) == (pb.GPU_STATE_OK, True, before.engine_pid)
            assert await generates(other.engine_url) > 0

            nvml.save(devices=list(map(gpu, range(4))))  # the operator has reset it
            await beats_b.until_gpu(pb.GPU_STATE_OK, hurt.said)
            by_hand, _ = await jobs.create(
                hurt.store, "b", 2, cause="manual", evidence="the GPU was reset", started_by="api"
            )
            assert (await ended(hurt.store, by_hand.id, 60)).state is JobState.SUCCEEDED
            back = await hurt.serving()
            assert (back.epoch, back.engine_pid != was.engine_pid) == (3, True)


async def test_a_fatal_xid_is_told_at_once_and_a_start_is_refused(
    redis_url: str, tmp_path: Path, nvml: FakeNvml
) -> None:
    """No reading has to find it; the refusal says what must be done."""
    async with node_on(0, redis_url, tmp_path) as (agent, beats):
        await beats.until_gpu(pb.GPU_STATE_OK, agent.said)
        nvml.xid(31)
        nvml.xid(79)
        report = await beats.until_gpu(pb.GPU_STATE_LOST, agent.said)
        assert (report.phase, "Xid 79" in report.gpu_detail) == (pb.PHASE_DOWN, True)
        stub = await agent.stub()
        await stub.Fence(agent.command(2), timeout=10)
        assert (await stub.Reclaim(agent.command(2), timeout=30)).nothing_left
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.Start(agent.command(2), timeout=30)
        assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert OPERATOR_KEY in dict(refused.value.trailing_metadata() or ())
        assert "unbroken recover a" in (refused.value.details() or "")
        assert (await agent.status()).phase == pb.PHASE_FAILED
        assert agent.engines() == set()


async def test_telemetry_that_fails_costs_nothing(redis_url: str, tmp_path: Path, nvml: FakeNvml) -> None:
    """Every call raises Unknown, as in a container after a reload of the host's systemd: the engine goes on."""
    async with node_on(0, redis_url, tmp_path) as (agent, beats):
        before = await beats.until_gpu(pb.GPU_STATE_OK, agent.said)
        answering = asyncio.create_task(generates(before.engine_url))
        nvml.save(everything="UNKNOWN")
        report = await beats.until_gpu(pb.GPU_STATE_TELEMETRY_LOST, agent.said)
        assert (report.ready, report.engine_pid, report.lease_held) == (True, before.engine_pid, True)
        assert (report.gpu_detail, report.free_bytes, report.temperature_c) == ("Unknown Error", 0, 0.0)
        assert await answering > 0
        assert await generates(report.engine_url) > 0
        assert not [each for each in beats.notices if each.kind == pb.NOTICE_KIND_ENGINE_DOWN]
        assert (await registered(agent, "TELEMETRY_LOST")).epoch == 1
        nvml.save(everything="fine")
        assert (await beats.until_gpu(pb.GPU_STATE_OK, agent.said)).engine_pid == before.engine_pid


async def test_a_host_without_nvml_serves_and_says_that_nothing_is_known(
    redis_url: str, tmp_path: Path, nvml: FakeNvml
) -> None:
    """Neither a missing library nor a missing figure stands in the way of an agent."""
    nvml.save(init="LIBRARY_NOT_FOUND")
    async with node_on(0, redis_url, tmp_path) as (agent, _):

        async def said() -> bool:
            return "Library Not Found" in (await agent.status()).gpu_detail

        await until(said, 20, agent.said)
        report = await agent.status()
        assert (report.gpu, report.ready, list(report.gpus)) == (pb.GPU_STATE_NONE, True, [])
        assert (await registry.get(agent.store, "a")).gpu == ""
        stub = await agent.stub()
        await stub.Fence(agent.command(2), timeout=10)
        assert (await stub.Reclaim(agent.command(2), timeout=30)).nothing_left
        stat = processes.read(report.engine_pid)
        assert stat is None or not stat.living  # proven by the end of the process, not by memory that reads as zero
        assert (await stub.Start(agent.command(2), timeout=60)).engine_pid


async def test_unified_memory_is_the_host_s_and_slices_are_devices(
    redis_url: str, tmp_path: Path, nvml: FakeNvml
) -> None:
    """What is unknown is absent in the report, not zero."""
    slices = [{"uuid": "MIG-1", "name": "MIG", "memory": [18_000, 3_000], "instance": 5}]
    parent = gpu(1, memory="NO_PERMISSION", utilisation="NOT_SUPPORTED", slices=slices)
    nvml.save(devices=[gpu(0, memory="NOT_SUPPORTED", utilisation="NOT_SUPPORTED"), parent])
    async with running_agent(redis_url, tmp_path, node__devices='["0", "MIG-1"]') as agent:
        await agent.serving()

        async def read() -> pb.NodeReport | None:
            report = await agent.status()
            return report if report.gpu == pb.GPU_STATE_OK else None

        report = await until(read, 20, agent.said)
        unified, part = report.gpus
        assert unified.memory_total > 2**28
        assert not unified.HasField("utilisation")
        assert "unified memory" in unified.detail
        assert (part.uuid, part.memory_total, part.memory_used) == ("MIG-1", 18_000, 3_000)
        assert not part.HasField("utilisation")


async def test_a_driver_that_hangs_stops_neither_heartbeats_nor_streams(
    redis_url: str, tmp_path: Path, nvml: FakeNvml
) -> None:
    """One helper hangs and cannot be killed; agent and engine go on, idle and busy, and it ends by itself."""
    async with node_on(0, redis_url, tmp_path) as (agent, beats):
        before = await beats.until_gpu(pb.GPU_STATE_OK, agent.said)
        nvml.save(block=True, stay_s=60)
        report = await beats.until_gpu(pb.GPU_STATE_DRIVER_UNRESPONSIVE, agent.said)
        answering = asyncio.create_task(generates(report.engine_url))
        for _ in range(100):
            report = await beats.ping()
            assert (report.ready, report.engine_pid, report.lease_held) == (True, before.engine_pid, True)
            await asyncio.sleep(0.03)
        assert await answering > 0
        assert len(nvml.blocked()) == 1
        assert (await registered(agent, "DRIVER_UNRESPONSIVE")).state is NodeState.STARTING

        # Nor does a new agent of this node start another one beside it.
        agent.kill9()
        agent.start()
        again = await agent.serving()
        assert again.engine_pid == before.engine_pid
        fresh = Beats(await agent.stub())
        try:
            await fresh.until_gpu(pb.GPU_STATE_DRIVER_UNRESPONSIVE, agent.said)
            assert len(nvml.blocked()) == 1
            nvml.save(block=False)
            nvml.release()
            recovered = await fresh.until_gpu(pb.GPU_STATE_OK, agent.said)
        finally:
            fresh.close()
        assert recovered.engine_pid == before.engine_pid
        assert not [each for each in beats.notices if each.kind == pb.NOTICE_KIND_ENGINE_DOWN]


async def test_a_node_on_the_cpu_needs_no_helper(redis_url: str, tmp_path: Path, nvml: FakeNvml) -> None:
    """GPUs of the host that the engine does not use cannot hurt it."""
    nvml.save(devices=[gpu(0, handle="GPU_IS_LOST")])
    async with running_agent(redis_url, tmp_path) as agent:
        report = await agent.serving()
        assert (report.gpu, report.gpu_detail) == (pb.GPU_STATE_NONE, "")
        assert not (agent.home / "gpu.lock").exists()
