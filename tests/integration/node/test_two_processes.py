"""An engine of several processes: the death of any ends all, and a green front hides nothing from the agent."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest

from engines import connect, lifeline
from engines.base import Generation
from engines.llamacpp import open_session
from node import processes
from node.processes import Identity
from protocol import unbroken_pb2 as pb
from recovery import leases
from tests.rigs import two_process_engine
from tests.rigs.agent import RunningAgent, running_agent, until
from tests.rigs.watching import Watching, watching

TWO = orjson.dumps(two_process_engine.command()).decode()
_SERVER = (
    f"{sys.executable} -m engines.llamacpp_server --host {{host}} --port {{port}} --alias {{alias}} "
    "--slots {slots} --context {context}"
)
# A shell as main process: it holds no lifeline, and passes nothing on.
NATIVE_FRONT = orjson.dumps(["/bin/sh", "-c", f"{_SERVER} & wait"]).decode()


@contextlib.asynccontextmanager
async def two_processes(
    redis_url: str, tmp_path: Path, command: str = TWO
) -> AsyncIterator[tuple[RunningAgent, Identity, Identity]]:
    """Run an agent whose engine has two processes; yield it with the front and the one behind it."""
    settings: dict[str, Any] = {"node__command": command}
    async with running_agent(redis_url, tmp_path, **settings) as agent:
        report = await agent.serving()
        front = processes.identify(report.engine_pid)
        assert front is not None
        (child,) = (one for one in agent.engines() if one != front)
        await until(lambda: old_enough(child))
        yield agent, front, child


async def old_enough(child: Identity) -> bool:
    """Whether a process has lived for so long that its death counts."""
    stat = processes.read(child.pid)
    assert stat is not None
    with open("/proc/uptime", encoding="ascii") as file:  # noqa: ASYNC230, PTH123 - no disk
        uptime = float(file.read().split()[0])
    return uptime - stat.started / os.sysconf("SC_CLK_TCK") > 1.1


async def down(watch: Watching) -> pb.Notice:
    """Wait for the news of a death."""
    notice = await watch.notice()
    assert (notice.kind, notice.cause) == (pb.NOTICE_KIND_ENGINE_DOWN, "process_exit")
    return notice


async def nothing_left(agent: RunningAgent, *members: Identity) -> None:
    """Wait until every process of the engine is gone, zombies included."""

    async def gone() -> bool:
        return not agent.engines() and all(processes.read(one.pid) is None for one in members)

    await until(gone, said=agent.said)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
async def test_the_death_of_the_process_behind_a_green_front_is_the_engines(
    redis_url: str, tmp_path: Path, number: signal.Signals
) -> None:
    """Killed, or gone by os._exit(0) (which TERM makes it do): the front would say 200 for ever (case G1-05)."""
    async with two_processes(redis_url, tmp_path) as (agent, front, child), watching(agent) as watch:
        await watch.ping()
        os.kill(child.pid, number)

        notice = await down(watch)

        assert f"pid {child.pid}" in notice.evidence
        assert f"of the engine with pid {front.pid}" in notice.evidence
        await nothing_left(agent, front, child)
        report = await agent.status()
        assert (report.phase, report.ready) == (pb.PHASE_DOWN, False)


@pytest.mark.parametrize("command", [TWO, NATIVE_FRONT])
async def test_the_death_of_the_front_ends_what_is_behind_it(redis_url: str, tmp_path: Path, command: str) -> None:
    """An orphan would keep memory and port; the front may be a program in any language."""
    async with two_processes(redis_url, tmp_path, command) as (agent, front, child), watching(agent) as watch:
        await watch.ping()
        os.kill(front.pid, signal.SIGKILL)

        assert f"pid {front.pid}" in (await down(watch)).evidence
        await nothing_left(agent, front, child)
        # And the job that follows finds a clean node.
        stub = await agent.stub()
        epoch = await leases.fence(agent.store, "a", 1, "job-1")
        await stub.Fence(agent.command(epoch), timeout=10)
        reclaimed = await stub.Reclaim(agent.command(epoch), timeout=10)
        assert (reclaimed.nothing_left, list(reclaimed.ended_pids)) == (True, [])


async def test_an_adopted_engine_counts_with_all_its_processes(redis_url: str, tmp_path: Path) -> None:
    """The agent was killed; the one after it watches what it finds."""
    async with two_processes(redis_url, tmp_path) as (agent, front, child):
        agent.kill9()
        agent.start()
        assert (await agent.serving()).engine_pid == front.pid
        async with watching(agent) as watch:
            await watch.ping()
            os.kill(child.pid, signal.SIGKILL)

            assert f"pid {child.pid}" in (await down(watch)).evidence


async def test_a_frozen_process_behind_a_green_front_shows_in_the_report(redis_url: str, tmp_path: Path) -> None:
    """Static endpoints say 200 all along; the agent says halted and still, and that it has no CPU time (case G1-01)."""
    async with two_processes(redis_url, tmp_path) as (agent, front, child), open_session() as session:
        url = (await agent.status()).engine_url
        engine = connect("llamacpp", url, session)
        prompt = await engine.tokenize("Count from one to one thousand: one, two, three,", 10)
        answer = engine.generate(Generation(prompt, 400, sampling={"ignore_eos": True}), 10)
        async with contextlib.aclosing(answer):
            await anext(answer)

            async def works() -> bool:
                now = await agent.status()
                return now.running == 1 and now.cpu_ms > 0

            await until(works)
            os.kill(child.pid, signal.SIGSTOP)
            try:

                async def stands() -> pb.NodeReport | None:
                    now = await agent.status()
                    return now if now.halted and now.still_ms > 500 else None

                before = await until(stands)

                async def stands_on() -> pb.NodeReport | None:
                    now = await agent.status()
                    return now if now.still_ms > before.still_ms + 500 and now.sample_age_ms < 300 else None

                after = await until(stands_on)
                assert after.ready  # no death: the verdict is the sentinel's
                assert after.computes_on_cpu
                # The front may have used a little.
                assert after.cpu_ms - before.cpu_ms + after.wait_ms - before.wait_ms < 250
                for path in ("/health", "/v1/models", "/props"):
                    assert await status(session, url + path) == 200
            finally:
                os.kill(child.pid, signal.SIGCONT)

            async def moves() -> bool:
                now = await agent.status()
                return not now.halted and now.still_ms < 500

            await until(moves)
        assert {front, child} == agent.engines()


async def status(session: aiohttp.ClientSession, url: str) -> int:
    """Ask the front."""
    async with asyncio.timeout(5), session.get(url) as answer:
        return answer.status


async def test_an_unknown_placeholder_in_the_command_is_refused_by_name(redis_url: str, tmp_path: Path) -> None:
    """Before anything is started."""
    async with running_agent(redis_url, tmp_path, node__command='["/bin/true", "{prot}"]') as agent:
        assert await agent.exit_code() == 2
        assert "node.command: {prot}" in agent.said()


async def test_processes_started_by_a_command_hold_lifelines(redis_url: str, tmp_path: Path) -> None:
    """The built-in engine and any other: no engine is patched."""
    async with two_processes(redis_url, tmp_path) as (agent, front, child):
        (folder,) = agent.lifelines()
        assert all(lifeline.is_held(folder / str(one.pid)) for one in (front, child))
