"""Real faults on a whole stack: every stream completes, token by token, and every job ends."""

import asyncio
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from cli.answers import Answer, stream_answer
from cli.compare import Difference, compare
from cli.faults import Killed, KillEngine, kill_process
from cli.watching import wait_for_job, wait_for_nodes
from recovery.auth import read_token
from tests.rigs.stack import RunningStack, until

pytestmark = [pytest.mark.acceptance, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(240)]

PROMPTS = (
    "How does a volcano erupt?",
    "What is photosynthesis? Explain it step by step.",
    "What is gravity? Explain it in detail.",
)


async def references(stack: RunningStack, count: int, max_tokens: int) -> list[Answer]:
    """Undisturbed answers to compare with."""
    await stack.all_trusted()
    return [await stack.answer(prompt, max_tokens) for prompt in PROMPTS[:count]]


def assert_whole(expected: Sequence[Answer], answers: Sequence[Answer]) -> None:
    """Every answer equals its reference: ids, text, finish reason, usage."""
    for reference, answer in zip(expected, answers, strict=True):
        assert reference.ids, "the reference has no token ids: nothing would be compared"
        assert Difference() == compare(reference.ids, answer.ids)
        assert reference.text == answer.text
        assert reference.finish_reason == answer.finish_reason
        assert reference.completion_tokens == answer.completion_tokens


def killer(stack: RunningStack, answer: Answer, after: int) -> KillEngine:
    """A SIGKILL for the engine that serves an answer, once it has some pieces."""
    return KillEngine(answer, after, stack.api, read_token(stack.stack.state_dir / "agent_token"))


def now_ms() -> int:
    """The wall clock in ms."""
    return int(time.time() * 1_000)


async def assert_recovered(stack: RunningStack, node: str, since_ms: int) -> None:
    """The node's job succeeded and the node is trusted again, under a new epoch."""
    job = await wait_for_job(stack.api, node, since_ms)
    assert job["state"] == "succeeded", job
    assert job["new_epoch"] == job["epoch"] + 1
    assert [step["state"] for step in job["steps"]] == ["succeeded"] * 6, job["steps"]
    await stack.all_trusted()
    assert (await stack.node(node))["epoch"] >= job["new_epoch"]


async def test_engine_killed_in_mid_stream_cuts_no_stream(stack: RunningStack) -> None:
    """SIGKILL under three streams: every client gets every token once, and the node comes back."""
    expected = await references(stack, 3, 80)
    answers = [Answer(prompt) for prompt in PROMPTS]
    # When the engine of the first stream dies after 20 pieces
    killed = await killer(stack, answers[0], 20).beside(
        [stream_answer(stack.client, answer, model=stack.model, max_tokens=80) for answer in answers]
    )
    # Then all are whole, also those that ran beside it
    assert_whole(expected, answers)
    await assert_recovered(stack, answers[0].node, killed.wall_ms)


async def test_engine_killed_before_the_first_token(stack: RunningStack) -> None:
    """A death while the prompt is still being computed loses nothing."""
    # Given an engine that is busy with a long prompt
    await stack.all_trusted()
    answer = Answer("Summarise this list of words: " + " ".join(f"word{number}" for number in range(150)))
    running = asyncio.create_task(stream_answer(stack.client, answer, model=stack.model, max_tokens=24))
    busy: list[str] = []

    async def prefilling() -> bool:
        busy[:] = [node["id"] for node in (await stack.api.get("/v1/nodes"))["data"] if node["running"]]
        return bool(busy)

    await until(prefilling, what="a node that computes the prompt")
    assert answer.arrivals == [], "the first token came before the kill"
    # When it is killed
    killed = await kill_process(await stack.engine_pid(busy[0]))
    assert answer.arrivals == [], "the first token came before the kill"
    await running
    # Then the answer is the same as without the fault
    await assert_recovered(stack, busy[0], killed.wall_ms)
    assert_whole([await stack.answer(answer.prompt, 24)], [answer])


async def test_both_engines_killed_and_clients_wait_until_one_is_back(stack: RunningStack) -> None:
    """With no engine left the streams stay open, and go on when a node returns."""
    expected = await references(stack, 2, 64)
    answers = [Answer(prompt) for prompt in PROMPTS[:2]]
    pids = [await stack.engine_pid(node) for node in ("a", "b")]
    running = [
        asyncio.create_task(stream_answer(stack.client, answer, model=stack.model, max_tokens=64)) for answer in answers
    ]
    # Given both streams in mid-answer
    await until(lambda: all(len(answer.arrivals) >= 10 for answer in answers), what="ten pieces of each answer")
    # When both engines die
    since = now_ms()
    await asyncio.gather(*(kill_process(pid) for pid in pids))
    await asyncio.gather(*running)
    # Then both answers are whole and both nodes come back
    assert_whole(expected, answers)
    for node in ("a", "b"):
        await assert_recovered(stack, node, since)


async def test_hung_engine_under_a_stream_is_found_and_replaced(stack: RunningStack) -> None:
    """SIGSTOP: sockets stay open, nothing comes; the stream goes on elsewhere and the node is restarted."""
    expected = await references(stack, 1, 64)
    answer = Answer(PROMPTS[0])
    running = asyncio.create_task(stream_answer(stack.client, answer, model=stack.model, max_tokens=64))
    await until(lambda: len(answer.arrivals) >= 10, what="ten pieces of the answer")
    # When the engine freezes
    pid, since = await stack.engine_pid(answer.node), now_ms()
    os.kill(pid, signal.SIGSTOP)
    await until(lambda: "T (stopped)" in Path(f"/proc/{pid}/status").read_text(), what="the stop of the engine")
    await running
    # Then the stream is whole, and the frozen engine is gone
    assert_whole(expected, [answer])
    job = await wait_for_job(stack.api, answer.node, since)
    assert job["cause"] == "hang"
    await assert_recovered(stack, answer.node, since)
    assert not Path(f"/proc/{pid}").exists()


async def test_worker_killed_during_a_job(stack: RunningStack) -> None:
    """SIGKILL of the whole slow worker while it recovers a node: the job still ends well."""
    expected = await references(stack, 1, 64)
    answer = Answer(PROMPTS[0])
    running = asyncio.create_task(stream_answer(stack.client, answer, model=stack.model, max_tokens=64))
    await until(lambda: len(answer.arrivals) >= 10, what="ten pieces of the answer")
    # When the engine dies, and the worker as soon as the job has begun to bring the node back
    killed = await kill_process(await stack.engine_pid(answer.node))
    await until(
        lambda: _step_running(stack, answer.node, killed, ("reclaim", "restart", "warm_up")), what="a slow step"
    )
    await kill_process(stack.pid("worker-slow"))
    await running
    # Then
    assert_whole(expected, [answer])
    await assert_recovered(stack, answer.node, killed.wall_ms)


async def test_redis_restarted_during_a_job(stack: RunningStack) -> None:
    """SIGKILL of Redis in mid-recovery: the stream goes on, the job ends, the stack is whole again."""
    expected = await references(stack, 1, 64)
    answer = Answer(PROMPTS[0])
    running = asyncio.create_task(stream_answer(stack.client, answer, model=stack.model, max_tokens=64))
    await until(lambda: len(answer.arrivals) >= 10, what="ten pieces of the answer")
    # When the engine dies, and Redis as soon as the job has begun
    killed = await kill_process(await stack.engine_pid(answer.node))
    await until(
        lambda: _step_running(stack, answer.node, killed, ("reclaim", "restart", "warm_up")), what="a slow step"
    )
    redis = stack.pid("redis")
    await kill_process(redis)
    await running
    # Then the stream is whole, Redis was started again, and the node comes back
    assert_whole(expected, [answer])
    await until(lambda: stack.pid("redis") != redis, what="a new Redis")
    await assert_recovered(stack, answer.node, killed.wall_ms)


async def test_healthy_stack_has_no_deaths_and_no_open_ends(stack: RunningStack) -> None:
    """After all those faults: both nodes trusted, no live job, nothing in flight, and calm stays calm."""
    await wait_for_nodes(stack.api, 2)
    jobs = (await stack.api.get("/v1/recovery/jobs"))["data"]
    await asyncio.sleep(6)  # longer than a round of micro-inferences: a false death would show
    after = (await stack.api.get("/v1/recovery/jobs"))["data"]
    assert [job["id"] for job in jobs] == [job["id"] for job in after]
    assert all(job["ended_ms"] for job in after)
    assert all(node["state"] == "ALIVE" and node["running"] == 0 for node in (await stack.api.get("/v1/nodes"))["data"])


async def _step_running(stack: RunningStack, node: str, killed: Killed, steps: tuple[str, ...]) -> bool:
    for job in (await stack.api.get("/v1/recovery/jobs"))["data"]:
        if job["node"] == node and job["created_ms"] >= killed.wall_ms:
            full = await stack.api.get(f"/v1/recovery/jobs/{job['id']}")
            assert not full["ended_ms"], "the job ended before the second fault"
            return any(step["name"] in steps and step["state"] == "running" for step in full["steps"])
    return False
