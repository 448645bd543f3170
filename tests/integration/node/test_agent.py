"""The agent with a real engine, a real Redis-compatible server and real gRPC: life, death, recovery."""

import asyncio
import contextlib
import os
import signal
from pathlib import Path

import grpc
import grpc.aio
import pytest
import redis

from engines import connect
from engines.base import Generation
from engines.llamacpp import open_session
from node import processes
from protocol import unbroken_pb2 as pb
from protocol.channel import STALE_EPOCH_KEY
from recovery import leases, registry
from recovery.registry import NodeState
from recovery.store import node_key
from tests.rigs.agent import RunningAgent, running_agent, until
from tests.rigs.processes import script
from tests.rigs.valkey import Valkey
from tests.rigs.watching import watching

SPINS = "print('ready', flush=True)\nwhile True: pass"


async def recover(agent: RunningAgent, epoch: int) -> pb.StartReply:
    """Run the commands of a recovery job."""
    stub = await agent.stub()
    await stub.Fence(agent.command(epoch), timeout=10)
    reclaimed = await stub.Reclaim(agent.command(epoch), timeout=30)
    assert reclaimed.nothing_left, reclaimed
    started: pb.StartReply = await stub.Start(agent.command(epoch), timeout=60)
    warm = await stub.WarmUp(agent.command(epoch), timeout=60)
    assert warm.tokens >= 4
    return started


async def fence_in_redis(agent: RunningAgent, epoch: int) -> int:
    """Fence the node as a recovery job does."""
    return await leases.fence(agent.store, agent.node, epoch, "job-1")


async def gone(pid: int) -> bool:
    """Whether a process is gone, or a zombie that only its parent can remove."""
    stat = processes.read(pid)
    return stat is None or not stat.living


async def test_a_booted_node_is_registered_serves_and_holds_its_lease(redis_url: str, tmp_path: Path) -> None:
    """What sentinel and gateway need to know is in Redis; pings are answered with the same report."""
    async with running_agent(redis_url, tmp_path) as agent:
        report = await agent.serving()

        async def announced() -> registry.Node | None:
            node = await registry.get(agent.store, "a")
            return node if node.engine_url else None

        node = await until(announced)
        assert (report.epoch, report.ready, report.lease_held) == (1, True, True)
        assert (node.epoch, node.state, node.engine_url) == (1, NodeState.STARTING, report.engine_url)
        assert (node.kind, node.slots, node.invariant) == ("llamacpp", 2, True)
        assert node.identity
        assert node.restart_ms > 0
        assert await leases.remaining_ms(agent.store, "a") > 0
        assert await agent.store.redis.get(node_key("a", "lease")) == f"{agent.holder}|1"
        environ = Path(f"/proc/{report.engine_pid}/environ").read_bytes()
        assert f"UNBROKEN_EPOCH=a:1:{agent.holder}".encode() in environ
        assert b"UNBROKEN_REDIS" not in environ
        assert os.getsid(report.engine_pid) == report.engine_pid
        async with watching(agent) as watch:
            pong = await watch.ping()
            assert (pong.sent_ns, pong.report.engine_pid) == (17, report.engine_pid)


async def test_a_killed_engine_is_told_at_once_and_comes_back_by_commands(redis_url: str, tmp_path: Path) -> None:
    """ENGINE_DOWN on every open stream; fence, reclaim, start, warm-up; a new process at a new address."""
    async with running_agent(redis_url, tmp_path) as agent:
        before = await agent.serving()
        async with watching(agent) as one, watching(agent) as two:
            await one.ping()
            await two.ping()
            os.kill(before.engine_pid, signal.SIGKILL)
            notices = [await one.notice(), await two.notice()]

        for notice in notices:
            assert (notice.kind, notice.epoch, notice.cause) == (pb.NOTICE_KIND_ENGINE_DOWN, 1, "process_exit")
            assert f"pid {before.engine_pid}" in notice.evidence
        down = await agent.status()
        assert (down.phase, down.ready, down.engine_pid) == (pb.PHASE_DOWN, False, 0)

        started = await recover(agent, await fence_in_redis(agent, 1))

        after = await agent.status()
        assert (after.phase, after.epoch, after.ready, after.lease_held) == (pb.PHASE_SERVING, 2, True, True)
        assert started.engine_pid == after.engine_pid != before.engine_pid
        assert started.engine_url == after.engine_url
        assert (await registry.get(agent.store, "a")).engine_url == started.engine_url
        assert {one.pid for one in agent.engines()} == {after.engine_pid}
        assert len(agent.lifelines()) == 1


async def test_commands_are_idempotent(redis_url: str, tmp_path: Path) -> None:
    """Late repetitions of every command of a job leave the new engine alone."""
    async with running_agent(redis_url, tmp_path) as agent:
        await agent.serving()
        epoch = await fence_in_redis(agent, 1)
        first = await recover(agent, epoch)

        again = await recover(agent, epoch)
        stub = await agent.stub()
        both = await asyncio.gather(*(stub.Start(agent.command(epoch), timeout=30) for _ in range(2)))

        assert {reply.engine_pid for reply in (first, again, *both)} == {first.engine_pid}
        assert (await agent.status()).ready


async def test_a_stale_command_is_refused_with_the_current_epoch(redis_url: str, tmp_path: Path) -> None:
    """The zombie of a job cannot touch the new engine."""
    async with running_agent(redis_url, tmp_path) as agent:
        await agent.serving()
        started = await recover(agent, await fence_in_redis(agent, 1))
        stub = await agent.stub()

        for method in (stub.Fence, stub.Reclaim, stub.Start, stub.WarmUp):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await method(agent.command(1), timeout=5)

            assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
            assert "stale epoch" in (refused.value.details() or "")
            assert dict(refused.value.trailing_metadata() or ())[STALE_EPOCH_KEY] == "2"
        report = await agent.status()
        assert (report.engine_pid, report.ready) == (started.engine_pid, True)


async def test_commands_for_another_node_or_no_epoch_are_refused(redis_url: str, tmp_path: Path) -> None:
    """A wrong address must never fence the wrong engine."""
    async with running_agent(redis_url, tmp_path) as agent:
        await agent.serving()
        stub = await agent.stub()
        for command in (agent.command(9, node="b"), agent.command(0)):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await stub.Fence(command, timeout=5)
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert (await agent.status()).epoch == 1


async def test_a_start_needs_the_old_engine_reclaimed(redis_url: str, tmp_path: Path) -> None:
    """Two engines of one node never run side by side."""
    # Given an agent that no renewal tells of the fence before the command does
    async with running_agent(
        redis_url, tmp_path, lease__renew_interval_ms=20_000, lease__lease_timeout_ms=60_000
    ) as agent:
        before = await agent.serving()
        epoch = await fence_in_redis(agent, 1)
        stub = await agent.stub()

        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.Start(agent.command(epoch), timeout=10)

        assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert str(before.engine_pid) in (refused.value.details() or "") or await gone(before.engine_pid)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.WarmUp(agent.command(epoch), timeout=10)
        assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION


async def test_an_agent_fenced_in_redis_cuts_its_engine_off_by_itself(redis_url: str, tmp_path: Path) -> None:
    """No command reaches it: the next renewal of the lease says so (requirements D4)."""
    async with running_agent(redis_url, tmp_path) as agent:
        before = await agent.serving()
        epoch = await fence_in_redis(agent, 1)

        fenced = await agent.phase(pb.PHASE_FENCED, 10)

        assert (fenced.epoch, fenced.ready, fenced.lease_held) == (epoch, False, False)
        await until(lambda: gone(before.engine_pid))
        await recover(agent, epoch)


async def test_a_stopped_engine_is_reclaimed(redis_url: str, tmp_path: Path) -> None:
    """SIGSTOP: no death is seen, the engine answers nothing, and TERM would be ignored."""
    async with running_agent(redis_url, tmp_path) as agent:
        before = await agent.serving()
        os.kill(before.engine_pid, signal.SIGSTOP)
        try:

            async def silent() -> bool:
                return (await agent.status()).progress_age_ms > 1_000

            await until(silent)
            started = await recover(agent, await fence_in_redis(agent, 1))

            assert started.engine_pid != before.engine_pid
            assert await gone(before.engine_pid)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(before.engine_pid, signal.SIGKILL)


async def test_a_restarted_agent_adopts_its_engine_and_still_sees_it_die(redis_url: str, tmp_path: Path) -> None:
    """kill -9 of the agent costs no stream: same process, same epoch, and the watch works on a stranger."""
    async with running_agent(redis_url, tmp_path) as agent:
        before = await agent.serving()
        agent.kill9()
        agent.start()

        after = await agent.serving()

        assert (after.engine_pid, after.epoch, after.engine_url) == (before.engine_pid, 1, before.engine_url)
        async with watching(agent) as watch:
            await watch.ping()
            os.kill(before.engine_pid, signal.SIGKILL)
            notice = await watch.notice()
        assert (notice.kind, notice.cause) == (pb.NOTICE_KIND_ENGINE_DOWN, "process_exit")
        await recover(agent, await fence_in_redis(agent, 1))


async def test_an_agent_restarted_while_fenced_waits_for_commands(redis_url: str, tmp_path: Path) -> None:
    """It takes no action of its own; the old engine is ended by Reclaim although it is no child."""
    async with running_agent(redis_url, tmp_path) as agent:
        before = await agent.serving()
        agent.kill9()
        epoch = await fence_in_redis(agent, 1)
        agent.start()

        fenced = await agent.phase(pb.PHASE_FENCED)

        assert (fenced.epoch, fenced.ready) == (epoch, False)
        assert not await gone(before.engine_pid)
        stub = await agent.stub()
        reclaimed = await stub.Reclaim(agent.command(epoch), timeout=30)
        assert (list(reclaimed.ended_pids), reclaimed.nothing_left) == ([before.engine_pid], True)
        assert await gone(before.engine_pid)
        await recover(agent, epoch)


async def test_the_epoch_floor_survives_an_emptied_redis(redis_url: str, tmp_path: Path) -> None:
    """A running agent teaches it the epoch and registers again; a restarted one goes on above its floor."""
    async with running_agent(redis_url, tmp_path) as agent:
        await agent.serving()
        started = await recover(agent, await fence_in_redis(agent, 1))
        flush(redis_url)

        async def back() -> bool:
            known = await registry.all_nodes(agent.store)
            return bool(known) and known[0].engine_url == started.engine_url and known[0].epoch == 2

        await until(back)
        assert await leases.current_epoch(agent.store, "a") == 2
        assert (await agent.status()).engine_pid == started.engine_pid

        assert await agent.terminate() == 0
        flush(redis_url)
        agent.start()
        assert (await agent.serving()).epoch == 3


async def test_a_fenced_node_begins_anew_when_redis_has_forgotten_it(redis_url: str, tmp_path: Path) -> None:
    """The job that would have commanded it is forgotten too."""
    async with running_agent(redis_url, tmp_path) as agent:
        await agent.serving()
        await fence_in_redis(agent, 1)
        await agent.phase(pb.PHASE_FENCED, 10)
        flush(redis_url)

        assert (await agent.serving()).epoch == 3


async def test_a_fenced_node_begins_anew_when_redis_has_lost_its_fence(redis_url: str, tmp_path: Path) -> None:
    """A Redis that came back a second behind knows neither fence nor job: nobody would ever command the node."""
    async with running_agent(redis_url, tmp_path) as agent:
        await agent.serving()
        before = {key: await agent.store.raw.dump(key) for key in (node_key("a", "epoch"), node_key("a"))}
        await fence_in_redis(agent, 1)
        await agent.phase(pb.PHASE_FENCED, 10)
        for key, value in before.items():
            await agent.store.raw.restore(key, 0, value, replace=True)

        assert (await agent.serving()).epoch == 3


async def test_an_engine_that_died_before_its_warm_up_is_replaced_by_the_next_start(
    redis_url: str, tmp_path: Path
) -> None:
    """The warm-up is refused, and the same epoch gets a fresh engine."""
    async with running_agent(redis_url, tmp_path) as agent:
        await agent.serving()
        command = agent.command(await fence_in_redis(agent, 1))
        stub = await agent.stub()
        await stub.Reclaim(command, timeout=30)
        started = await stub.Start(command, timeout=60)
        os.kill(started.engine_pid, signal.SIGKILL)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.WarmUp(command, timeout=30)
        assert refused.value.code() in (grpc.StatusCode.ABORTED, grpc.StatusCode.FAILED_PRECONDITION)

        again = await stub.Start(command, timeout=60)

        assert again.engine_pid != started.engine_pid
        assert (await stub.WarmUp(command, timeout=60)).tokens >= 4


async def test_nothing_is_ready_before_it_has_generated_something(redis_url: str, tmp_path: Path) -> None:
    """Loading, serving but not warmed up, about to stop: no work for any of them (case G4-09)."""
    async with running_agent(redis_url, tmp_path) as agent:
        stub = await agent.stub()
        ready = False
        while not ready:
            report = await stub.Status(pb.StatusRequest(), timeout=5)
            ready = report.ready
            assert report.phase == pb.PHASE_SERVING or not ready
            await asyncio.sleep(0.01)
        assert "engine.started" in agent.said()
        command = agent.command(await fence_in_redis(agent, 1))
        await stub.Fence(command, timeout=10)
        assert not (await agent.status()).ready
        await stub.Reclaim(command, timeout=30)

        await stub.Start(command, timeout=60)
        started = await agent.status()
        await stub.WarmUp(command, timeout=60)
        warm = await agent.status()

        assert (started.phase, started.ready) == (pb.PHASE_SERVING, False)
        assert (warm.phase, warm.ready) == (pb.PHASE_SERVING, True)
        async with watching(agent) as watch:
            await watch.ping()
            assert agent.process is not None
            agent.process.terminate()
            assert (await watch.notice()).kind == pb.NOTICE_KIND_STOPPING
            assert not (await watch.ping()).report.ready
        assert await agent.exit_code() == 0


async def test_an_engine_is_not_warmed_up_for_work_without_a_lease(own_valkey: Valkey, tmp_path: Path) -> None:
    """The caller is told to wait, and the engine is kept; with Redis back it goes on (requirements D3)."""
    async with running_agent(
        own_valkey.url, tmp_path, lease__renew_interval_ms=300, lease__lease_timeout_ms=1_000
    ) as agent:
        await agent.serving()
        stub = await agent.stub()
        command = agent.command(await fence_in_redis(agent, 1))
        await stub.Fence(command, timeout=10)
        await stub.Reclaim(command, timeout=30)
        started = await stub.Start(command, timeout=60)
        own_valkey.stop(signal.SIGKILL)

        async def lost() -> bool:
            return not (await stub.Status(pb.StatusRequest(), timeout=5)).lease_held

        await until(lost)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.WarmUp(command, timeout=30)

        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        assert "its lease is not held" in (refused.value.details() or "")
        assert (await stub.Status(pb.StatusRequest(), timeout=5)).engine_pid == started.engine_pid
        own_valkey.start()

        async def warmed_up() -> bool:
            try:
                await stub.WarmUp(command, timeout=30)
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.UNAVAILABLE:
                    raise
                return False
            return True

        await until(warmed_up, 20.0, agent.said)
        assert (await stub.Status(pb.StatusRequest(), timeout=5)).engine_pid == started.engine_pid


async def test_an_engine_serves_on_while_redis_is_away(own_valkey: Valkey, tmp_path: Path) -> None:
    """Requirements D12; the lease is taken again once Redis is back, and so is an agent's boot."""
    async with running_agent(own_valkey.url, tmp_path, lease__lease_timeout_ms=1_500) as agent:
        before = await agent.serving()
        stub = await agent.stub()
        own_valkey.stop(signal.SIGKILL)

        async def lost() -> bool:
            return not (await stub.Status(pb.StatusRequest(), timeout=5)).lease_held

        await until(lost)
        assert (await stub.Status(pb.StatusRequest(), timeout=5)).ready
        agent.kill9()
        agent.start()

        async def waiting() -> bool:
            return "agent.waits_for_redis" in agent.said()

        await until(waiting)
        own_valkey.start()

        async def held() -> bool:
            report = await agent.status()
            return report.lease_held and report.engine_pid == before.engine_pid

        await until(held, 20.0, agent.said)


async def test_an_agent_and_engine_that_died_together_begin_anew(redis_url: str, tmp_path: Path) -> None:
    """A machine that crashed: nothing to adopt, a new epoch, a new engine."""
    async with running_agent(redis_url, tmp_path) as agent:
        before = await agent.serving()
        agent.kill9()
        os.kill(before.engine_pid, signal.SIGKILL)
        await until(lambda: gone(before.engine_pid))
        agent.start()

        after = await agent.serving()

        assert after.epoch == 2
        assert after.engine_pid != before.engine_pid


async def test_a_frozen_engine_with_work_stands_still_in_the_report(redis_url: str, tmp_path: Path) -> None:
    """What the sentinel judges a hang by (requirements E4)."""
    async with running_agent(redis_url, tmp_path) as agent, open_session() as session:
        report = await agent.serving()
        engine = connect("llamacpp", report.engine_url, session)
        prompt = await engine.tokenize("Count from one to one thousand: one, two, three,", 10)
        answer = engine.generate(Generation(prompt, 400, sampling={"temperature": 0}), 10)
        async with contextlib.aclosing(answer):
            await anext(answer)

            async def works() -> bool:
                now = await agent.status()
                return now.running == 1 and now.progress > 0

            await until(works)
            os.kill(report.engine_pid, signal.SIGSTOP)
            try:

                async def still() -> bool:
                    now = await agent.status()
                    return now.still_ms > 1_000 and now.progress_age_ms > 500

                await until(still)
                assert (await agent.status()).ready  # no death: the verdict is the sentinel's
            finally:
                os.kill(report.engine_pid, signal.SIGCONT)

            async def moves() -> bool:
                return (await agent.status()).still_ms < 1_000

            await until(moves)


async def test_a_starved_engine_is_seen_to_wait_and_gets_its_answers_out(redis_url: str, tmp_path: Path) -> None:
    """A few percent of one CPU: its steps take half a second, and it is neither stuck nor silent (case G4-02)."""
    cpu = min(os.sched_getaffinity(0))
    async with running_agent(redis_url, tmp_path, node__engine_nice=10) as agent, open_session() as session:
        report = await agent.serving()
        engine = connect("llamacpp", report.engine_url, session)
        prompt = await engine.tokenize("Count from one to one thousand: one, two, three,", 10)
        answer = engine.generate(Generation(prompt, 400, sampling={"ignore_eos": True}), 10)
        async with contextlib.aclosing(answer):
            await anext(answer)
            with contextlib.ExitStack() as spinning:
                for _ in range(3):
                    os.sched_setaffinity(spinning.enter_context(script(SPINS)).pid, {cpu})
                for thread in processes.threads(report.engine_pid):
                    os.sched_setaffinity(thread, {cpu})
                before = await agent.status()
                seen = set()

                async def moved_and_waited() -> bool:
                    now = await agent.status()
                    seen.add(now.progress)
                    return len(seen) > 3 and now.wait_ms > before.wait_ms + 1_500

                await until(moved_and_waited, 60.0, agent.said)
                after = await agent.status()

            assert after.wait_ms - before.wait_ms > after.cpu_ms - before.cpu_ms
            assert (after.ready, after.halted, after.running) == (True, False, 1)


async def test_a_stop_in_mid_start_leaves_nothing_behind(redis_url: str, tmp_path: Path) -> None:
    """The engine was launched and not ready yet."""
    async with running_agent(redis_url, tmp_path) as agent:

        async def launched() -> bool:
            return "engine.launched" in agent.said()

        await until(launched, 15.0, agent.said)

        assert await agent.terminate() == 0
        assert (agent.engines(), agent.lifelines()) == (set(), [])


async def test_a_stop_does_not_wait_for_a_silent_redis(own_valkey: Valkey, tmp_path: Path) -> None:
    """Redis hangs: the engine is ended all the same."""
    async with running_agent(own_valkey.url, tmp_path) as agent:
        await agent.serving()
        os.kill(own_valkey.pid, signal.SIGSTOP)
        try:
            assert await agent.terminate() == 0
            assert agent.engines() == set()
        finally:
            os.kill(own_valkey.pid, signal.SIGCONT)


async def test_a_stop_leaves_nothing_behind(redis_url: str, tmp_path: Path) -> None:
    """No process, no lifeline file, no lease; the sentinel is told that it is no death."""
    async with running_agent(redis_url, tmp_path) as agent:
        report = await agent.serving()
        async with watching(agent) as watch:
            await watch.ping()
            stopping = asyncio.create_task(agent.terminate())
            assert (await watch.notice()).kind == pb.NOTICE_KIND_STOPPING

            assert await stopping == 0

        assert processes.read(report.engine_pid) is None
        assert (agent.engines(), agent.lifelines()) == (set(), [])
        assert (await registry.get(agent.store, "a")).state is NodeState.STOPPED
        assert await leases.remaining_ms(agent.store, "a") < 0


def flush(url: str) -> None:
    """Empty Redis."""
    client = redis.Redis.from_url(url)
    try:
        client.flushall()
    finally:
        client.close()
