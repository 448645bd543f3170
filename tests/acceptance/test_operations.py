"""Operating a whole stack: manual recovery, refusals with a remedy, Flower, and what `unbroken` prints."""

import asyncio
import os
import sys
from typing import Any

import aiohttp
import openai
import pytest

from cli.operations import GatewayAnswer
from cli.watching import wait_for_job
from tests.rigs.stack import RunningStack, until

pytestmark = [pytest.mark.acceptance, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(240)]


async def test_manual_recovery_runs_and_a_second_one_is_refused_with_its_address(stack: RunningStack) -> None:
    """One live job per node: the second caller learns where the first one's is."""
    await stack.all_trusted()
    old_pid = await stack.engine_pid("a")
    # When a recovery is ordered twice
    first = await stack.api.post("/v1/recovery/jobs", {"node": "a", "reason": "drill"})
    with pytest.raises(GatewayAnswer, match=rf"409.*{first['id']}"):
        await stack.api.post("/v1/recovery/jobs", {"node": "a"})
    # Then the first one replaces the engine
    job = await wait_for_job(stack.api, "a", first["created_ms"])
    assert job["state"] == "succeeded", job
    assert job["reason"] == "drill"
    assert await stack.engine_pid("a") != old_pid
    await stack.all_trusted()


async def test_dry_run_plans_and_changes_nothing(stack: RunningStack) -> None:
    """The plan names the steps; epoch and jobs stay as they are."""
    await stack.all_trusted()
    before = await stack.node("b")
    plan = await stack.api.post("/v1/recovery/jobs", {"node": "b", "dry_run": True})
    assert [step["name"] for step in plan["steps"]] == [
        "fence", "requeue", "reclaim", "restart", "warm_up", "requeue_waiting",
    ]  # fmt: skip
    after = await stack.node("b")
    assert (before["epoch"], before["state"]) == (after["epoch"], after["state"])
    assert all(job["node"] != "b" for job in (await stack.api.get("/v1/recovery/jobs"))["data"])


async def test_unknown_node_is_refused_by_name(stack: RunningStack) -> None:
    """404 names the node."""
    with pytest.raises(GatewayAnswer, match=r"'?nowhere'?.*404"):
        await stack.api.post("/v1/recovery/jobs", {"node": "nowhere"})


async def test_inference_key_may_not_operate(stack: RunningStack) -> None:
    """A key without the scope gets 403, no key 401."""
    url = f"{stack.addresses.gateway}/v1/recovery/jobs"
    async with aiohttp.ClientSession() as session:
        async with session.get(url) as response:
            assert response.status == 401
        key = {"Authorization": f"Bearer {stack.addresses.inference_key}"}
        async with session.get(url, headers=key) as response:
            assert response.status == 403


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"model": "gpt-17"}, openai.NotFoundError, "gpt-17"),
        ({"max_tokens": 0}, openai.BadRequestError, "max_tokens"),
        ({"messages": [{"role": "user", "content": "word " * 4_000}]}, openai.BadRequestError, "context"),
        ({"messages": "hello"}, openai.BadRequestError, "messages"),
    ],
    ids=["unknown-model", "no-tokens", "too-long", "wrong-type"],
)
async def test_bad_request_is_a_clear_4xx(
    stack: RunningStack, change: dict[str, Any], error: type[openai.APIStatusError], words: str
) -> None:
    """The openai client raises its own exception, and the message names the field."""
    request: dict[str, Any] = {"model": stack.model, "messages": [{"role": "user", "content": "hi"}], **change}
    with pytest.raises(error, match=words):
        await stack.client.chat.completions.create(**request)


async def test_missing_and_wrong_key_are_refused(stack: RunningStack) -> None:
    """401 as OpenAI's clients know it."""
    async with openai.AsyncOpenAI(base_url=f"{stack.addresses.gateway}/v1", api_key="wrong", max_retries=0) as client:
        with pytest.raises(openai.AuthenticationError):
            await client.models.list()


async def test_malformed_json_is_refused(stack: RunningStack) -> None:
    """Half a body is 400 in the OpenAI shape."""
    headers = {
        "Authorization": f"Bearer {stack.addresses.inference_key}", "Content-Type": "application/json"
    }  # fmt: skip
    url = f"{stack.addresses.gateway}/v1/chat/completions"
    async with aiohttp.ClientSession() as session, session.post(url, data=b'{"model": ', headers=headers) as response:
        assert response.status == 400
        assert "JSON" in (await response.json())["error"]["message"]


async def test_flower_saw_the_recovery_tasks(stack: RunningStack) -> None:
    """Asked over HTTP, Flower knows the steps of a job by name, node and job."""
    job = await stack.api.post("/v1/recovery/jobs", {"node": "a", "reason": "for Flower"})
    await wait_for_job(stack.api, "a", job["created_ms"])

    async def seen() -> bool:
        async with aiohttp.ClientSession() as session, session.get(f"{stack.addresses.flower}/api/tasks") as response:
            assert response.status == 200
            tasks = (await response.json()).values()
        mine = {task["name"] for task in tasks if job["id"] in (task["kwargs"] or "")}
        return {"recovery.fence", "recovery.reclaim", "recovery.restart", "recovery.warm_up"} <= mine

    await until(seen, 20, "Flower's record of the tasks")
    await stack.all_trusted()


async def unbroken(stack: RunningStack, *arguments: str) -> str:
    """Run a command beside the stack, as an operator would, and return what it printed."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "cli.main", *arguments,
        env={**os.environ, "UNBROKEN_STACK__STATE_DIR": str(stack.stack.state_dir), "COLUMNS": "200"},
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    async with asyncio.timeout(30):
        output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()
    return output.decode()


async def test_command_line_shows_nodes_and_jobs_and_recovers(stack: RunningStack) -> None:
    """The commands find the running stack by themselves, with its key."""
    await stack.all_trusted()
    # When an operator recovers a node by hand
    said = await unbroken(stack, "recover", "b", "--reason", "by hand")
    newest = (await stack.api.get("/v1/recovery/jobs"))["data"][0]
    assert newest["id"] in said
    job = await wait_for_job(stack.api, "b", newest["created_ms"])
    # Then the lists show the node and the job, and the job its steps
    assert "ALIVE" in await unbroken(stack, "nodes")
    assert job["id"] in await unbroken(stack, "jobs")
    shown = await unbroken(stack, "jobs", job["id"])
    assert all(step["name"] in shown for step in job["steps"])
    await stack.all_trusted()
