"""The helper process and its deadlines."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
import uvloop

from node import processes
from node.gpu.client import Client, Deadlines, Silent
from node.gpu.reading import XidEvent
from tests.rigs.agent import until
from tests.rigs.fake_pynvml import FakeNvml, gpu

SHORT = Deadlines(answer=0.3, fresh=0.5, cold=0.5)


def alive(pid: int) -> bool:
    """Whether a process still runs."""
    stat = processes.read(pid)
    return stat is not None and stat.living


@pytest.fixture
def xids() -> list[XidEvent]:
    """What the client was told."""
    return []


@pytest.fixture
async def client(nvml: FakeNvml, xids: list[XidEvent], tmp_path: Path) -> AsyncGenerator[Client]:
    """A client with a lock and short deadlines."""
    client = Client(xids.append, tmp_path / "gpu.lock", SHORT)
    try:
        yield client
    finally:
        client.close()
        nvml.release()


async def test_questions_are_answered_by_one_process_of_its_own_session(client: Client) -> None:
    """It is not the agent's process, nor in its session."""
    for _ in range(3):
        reading = await client.ask(None)
        assert [device.uuid for device in reading.devices] == [gpu(0)["uuid"], gpu(1)["uuid"]]
    [pid] = client.pids
    assert pid != os.getpid()
    assert os.getsid(pid) == pid


async def test_settings_are_kept_from_the_helper(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """They may hold passwords."""
    monkeypatch.setenv("UNBROKEN_REDIS__URL", "redis://:secret@host")
    await client.ask(None)
    assert b"UNBROKEN" not in Path(f"/proc/{client.pids[0]}/environ").read_bytes()


async def test_a_helper_that_does_not_answer_is_killed_and_replaced(client: Client, nvml: FakeNvml) -> None:
    """TERM would not end it."""
    await client.ask(None)
    [first] = client.pids
    nvml.save(block=True)
    with pytest.raises(Silent, match="the driver does not answer"):
        await client.ask(None)
    assert not alive(first)
    assert client.pids == []
    nvml.save(block=False)
    assert (await client.ask(None)).library == "ok"
    assert client.pids != [first]


async def test_no_helper_is_started_beside_one_that_cannot_be_killed(client: Client, nvml: FakeNvml) -> None:
    """Its death is waited for, however often is asked; then a new one answers."""
    await client.ask(None)
    nvml.save(block=True, stay_s=60)
    for _ in range(4):
        with pytest.raises(Silent):
            await client.ask(None)
    assert len(nvml.blocked()) == 1
    nvml.save(block=False)
    with pytest.raises(Silent, match="still hangs in the driver"):
        await client.ask(None)
    nvml.release()
    await until(lambda: answers(client))
    assert len(nvml.blocked()) == 1


async def test_a_later_agent_finds_the_helper_an_earlier_one_left(
    client: Client, nvml: FakeNvml, tmp_path: Path
) -> None:
    """So that agents that come and go leave no heap of stuck processes behind."""
    nvml.save(block=True, stay_s=60)
    with pytest.raises(Silent):
        await client.ask(None)
    nvml.save(block=False)
    later = Client(lambda _: None, tmp_path / "gpu.lock", SHORT)
    try:
        with pytest.raises(Silent, match="an earlier helper"):
            await later.ask(None)
        assert later.pids == []
        nvml.release()
        await until(lambda: answers(later))
    finally:
        later.close()


async def test_a_helper_ends_with_its_agent(nvml: FakeNvml, tmp_path: Path) -> None:
    """Nobody is there to kill it after a SIGKILL of the agent: the end of its stdin is enough."""
    script = (
        "import asyncio, os\nfrom node.gpu.client import Client\n"
        "async def main():\n    client = Client(print)\n    await client.ask(None)\n"
        "    print(client.pids[0], flush=True)\n    await asyncio.sleep(60)\nasyncio.run(main())\n"
    )
    agent = await asyncio.create_subprocess_exec(sys.executable, "-c", script, stdout=asyncio.subprocess.PIPE)
    assert agent.stdout is not None
    helper = int(await asyncio.wait_for(agent.stdout.readline(), 20))
    assert alive(helper)
    agent.kill()
    await agent.wait()
    await until(lambda: gone(helper))


async def test_a_helper_that_crashes_is_an_error_and_no_silence(client: Client, nvml: FakeNvml) -> None:
    """The library may take its process with it; the next question has a new one."""
    await client.ask(None)
    os.kill(client.pids[0], signal.SIGKILL)
    assert (await client.ask(None)).library == "failing"
    assert (await client.ask(None)).library == "ok"


async def test_a_starved_helper_is_not_taken_for_a_sick_driver(client: Client) -> None:
    """The deadline runs from the moment it has the question."""
    await client.ask(None)
    [pid] = client.pids
    os.kill(pid, signal.SIGSTOP)
    asking = asyncio.create_task(client.ask(None))
    await asyncio.sleep(3 * SHORT.answer)
    assert not asking.done()
    os.kill(pid, signal.SIGCONT)
    assert (await asking).library == "ok"


def test_an_answer_that_came_while_the_agent_itself_stood_still_counts(nvml: FakeNvml) -> None:
    """What is in the pipe by then is no silence of the driver, on the loop agents run."""

    async def main() -> str:
        client = Client(lambda _: None)
        try:
            await client.ask(None)
            client._deadlines = Deadlines(begin=0.2)
            asking = asyncio.create_task(client.ask(None))
            await asyncio.sleep(0)
            time.sleep(1.0)  # noqa: ASYNC251 - the loop is to stand still
            return (await asking).library
        finally:
            client.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(main()) == "ok"


async def test_an_xid_is_told_without_being_asked_for(client: Client, nvml: FakeNvml, xids: list[XidEvent]) -> None:
    """While nobody asks, and from a GPU that no longer says who it is."""
    await client.ask(None)
    nvml.save(devices=[gpu(0), gpu(1, uuid="GPU_IS_LOST")])
    nvml.xid(79, index=1)
    nvml.xid(31, index=0, instance=3)

    async def told() -> bool:
        return len(xids) == 2

    await until(told)
    assert xids == [XidEvent(79, 1, gpu(1)["uuid"]), XidEvent(31, 0, gpu(0)["uuid"], 3)]


async def test_a_gpu_without_events_is_read_all_the_same(client: Client, nvml: FakeNvml, xids: list[XidEvent]) -> None:
    """The other one's are told."""
    nvml.save(devices=[gpu(0, events="NOT_SUPPORTED"), gpu(1)])
    assert len((await client.ask(None)).devices) == 2
    nvml.xid(79, index=0)
    nvml.xid(13, index=1)

    async def told() -> bool:
        return bool(xids)

    await until(told)
    assert [event.code for event in xids] == [13]


async def test_bindings_that_are_not_installed_are_nothing_to_read(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent goes on without."""
    monkeypatch.setenv("NVML_MODULE", "no_such_module")
    reading = await client.ask(None)
    assert (reading.library, "no_such_module" in reading.detail) == ("none", True)


async def answers(client: Client) -> bool:
    """Whether the client's question is answered."""
    try:
        return (await client.ask(None)).library == "ok"
    except Silent:
        return False


async def gone(pid: int) -> bool:
    """Whether a process is gone."""
    return not alive(pid)
