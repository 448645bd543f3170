"""The operations API on a real Redis: orders, refusals, what it shows."""

from typing import Any

import orjson

from recovery import events, jobs, leases, registry
from recovery.journal import Entry, open_entry
from recovery.registry import NodeState
from recovery.store import Store
from tests.rigs.gateway import RunningGateway, running_gateway, until

_FIGURES: dict[str, str | int | float | bool] = {
    "why": "three pongs in time", "cause": "link", "job": "a.0", "gpu": "OK", "rtt_us": 410.0, "ewma_us": 400.0,
    "baseline_us": 390.0, "free_ratio": 0.5, "score": 15.28, "running": 2, "waiting": 1, "slots": 4,
}  # fmt: skip


async def _node(store: Store, name: str, state: NodeState = NodeState.ALIVE) -> int:
    epoch = (await leases.boot(store, name, name, 0, 0, 60_000)).epoch
    fields: dict[str, str | int | float | bool] = {
        "model": "m",
        "identity": "same",
        "engine_url": "http://127.0.0.1:1",
        "context": 100,
        "kind": "llamacpp",
    }
    await registry.register(store, name, epoch, fields)
    await registry.set_state(store, name, epoch, state, weight=1.0)
    return epoch


async def _post(gateway: RunningGateway, **order: Any) -> tuple[int, dict[str, Any], dict[str, str]]:
    async with gateway.session.post(f"{gateway.url}/v1/recovery/jobs", json=order) as answer:
        assert answer.content_type == ("application/json" if answer.status < 400 else "application/problem+json")
        return answer.status, await answer.json(content_type=None), dict(answer.headers)


async def _get(gateway: RunningGateway, path: str) -> tuple[int, Any]:
    async with gateway.session.get(gateway.url + path) as answer:
        return answer.status, await answer.json(content_type=None)


async def test_a_job_is_created_shown_and_refused_a_second_time(redis_url: str, store: Store) -> None:
    """202 with its address, an event for the dispatcher, and 409 with the live job's address afterwards."""
    # Given
    epoch = await _node(store, "a")
    async with running_gateway(redis_url) as gateway:
        # When
        status, job, headers = await _post(gateway, node="a", reason="maintenance")
        # Then
        assert (status, headers["Location"]) == (202, f"/v1/recovery/jobs/a.{epoch}")
        assert (job["state"], job["cause"], job["reason"]) == ("queued", "manual", "maintenance")
        assert [step["name"] for step in job["steps"]] == [step.name for step in jobs.RECOVER]
        told = await store.redis.xrevrange("unbroken:events", count=1)
        assert told[0][1]["kind"] == events.Kind.JOB_STATE
        status, problem, headers = await _post(gateway, node="a")
        assert (status, problem["job"], headers["Location"]) == (409, f"a.{epoch}", f"/v1/recovery/jobs/a.{epoch}")
        # A dry run meets the same refusal: it tells what an order would.
        assert (await _post(gateway, node="a", dry_run=True))[0] == 409
        assert (await _get(gateway, headers["Location"]))[1]["id"] == f"a.{epoch}"
        assert [shown["id"] for shown in (await _get(gateway, "/v1/recovery/jobs"))[1]["data"]] == [f"a.{epoch}"]
        assert (await _get(gateway, "/v1/recovery/jobs?node=b"))[1]["data"] == []


async def test_wrong_orders_are_refused_clearly(redis_url: str, store: Store) -> None:
    """Unknown node and job 404, unsupported action and wrong fields 422, malformed JSON 422."""
    await _node(store, "a")
    async with running_gateway(redis_url) as gateway:
        status, problem, _ = await _post(gateway, node="zz")
        assert status == 404
        assert "zz" in problem["detail"]
        status, problem, _ = await _post(gateway, node="a", action="compact")
        assert (status, problem["supported"]) == (422, ["recover"])
        status, problem, _ = await _post(gateway, node="a", nope=1)
        assert status == 422
        assert "nope" in problem["detail"]
        assert (await _post(gateway))[0] == 422
        async with gateway.session.post(f"{gateway.url}/v1/recovery/jobs", data=b"{") as answer:
            assert answer.status == 422
        for path in ("/v1/recovery/jobs/zz.1", "/v1/recovery/jobs/zz.1/events", "/v1/nodes/zz", "/v1/nothing"):
            assert (await _get(gateway, path))[0] == 404
        assert await jobs.newest(store) == []


async def test_a_dry_run_shows_the_plan_and_changes_nothing(redis_url: str, store: Store) -> None:
    """Steps and each request's way; no job, no event, no assignment."""
    epoch = await _node(store, "a")
    await _node(store, "b")
    entry = Entry("r1", "g", 0, "a", epoch, 10, 5, 0, "same", "m")
    await open_entry(store, entry, list(range(10)), {}, 60)
    before = await store.redis.xlen("unbroken:events")
    async with running_gateway(redis_url) as gateway:
        status, plan, _ = await _post(gateway, node="a", dry_run=True)
    assert status == 200
    assert [step["name"] for step in plan["steps"]] == [step.name for step in jobs.RECOVER]
    [move] = plan["requests"]
    assert (move["request"], move["route"], move["to"], move["tokens"]) == ("r1", "peer", "b", 10)
    assert await jobs.newest(store) == []
    assert await store.redis.xlen("unbroken:events") == before


async def test_a_job_s_events_are_followed_to_its_end(redis_url: str, store: Store) -> None:
    """The audit trail as it grows; the stream ends with the job, and a reader may come back with its last id."""
    await _node(store, "a")
    async with running_gateway(redis_url) as gateway:
        _, shown, _ = await _post(gateway, node="a")
        job = await jobs.get(store, shown["id"])
        seen, last = [], ""
        async with gateway.session.get(gateway.url + shown["events"]) as answer:
            assert answer.content_type == "text/event-stream"
            async for line in answer.content:
                if line.startswith(b"id: "):
                    last = last or line[4:].decode().strip()
                if line.startswith(b"data: "):
                    seen.append(orjson.loads(line[6:])["event"])
                    if seen == ["job.created"]:
                        verdict, attempt = await jobs.begin_step(store, job, jobs.RECOVER[0], "w")
                        assert verdict == "begun"
                        await jobs.end_step(store, job.id, "fence", attempt, "succeeded", {"epoch": 2})
                        await jobs.end(store, job, jobs.JobState.FAILED, "as the test wants")
        assert seen == ["job.created", "step.begun", "step.succeeded", "job.failed"]
        headers = {"Last-Event-ID": last}
        async with gateway.session.get(gateway.url + shown["events"], headers=headers) as answer:
            assert (await answer.read()).count(b"data: ") == 3
        _, ended = await _get(gateway, f"/v1/recovery/jobs/{job.id}")
        assert (ended["state"], ended["error"]) == ("failed", "as the test wants")
        assert ended["took_ms"] >= 0
        assert ended["steps"][0]["outcome"] == {"epoch": 2}


async def test_nodes_health_and_docs_are_shown(redis_url: str, store: Store) -> None:
    """What a load balancer, a Prometheus and a newcomer ask for."""
    async with running_gateway(redis_url) as gateway:
        status, ready = await _get(gateway, "/readyz")
        assert (status, ready["problems"]) == (503, ["no node is available"])
        await _node(store, "a")
        await gateway.ready()
        assert (await _get(gateway, "/healthz"))[0] == 200
        status, shown = await _get(gateway, "/v1/nodes")
        assert [(node["id"], node["state"]) for node in shown["data"]] == [("a", "ALIVE")]
        await registry.write(store, "a", 1, _FIGURES)
        node = (await _get(gateway, "/v1/nodes/a"))[1]
        assert {**_FIGURES, "model": "m", "epoch": 1, "weight": 1.0, "queue": 0.75}.items() <= node.items()
        schema = (await _get(gateway, "/openapi.json"))[1]
        assert {"/v1/chat/completions", "/v1/recovery/jobs"} <= set(schema["paths"])
        async with gateway.session.get(f"{gateway.url}/docs") as answer:
            assert answer.status == 200
        async with gateway.session.get(f"{gateway.url}/metrics") as answer:
            text = await answer.text()
        for name in (
            "unbroken_streams",
            "unbroken_resumes",
            "unbroken_resume_gap_seconds",
            "unbroken_journal_failures",
            'unbroken_node_weight{node="a"} 1.0',
            'unbroken_node_state{node="a",state="ALIVE"} 1.0',
        ):
            assert name in text


async def test_a_node_s_weight_and_state_are_figures_and_a_node_that_is_gone_leaves_none(
    redis_url: str, store: Store
) -> None:
    """As this gateway sees them at the moment it is asked: one state each."""
    epoch = await _node(store, "a")
    async with running_gateway(redis_url) as gateway:
        await gateway.ready()
        await registry.set_state(store, "a", epoch, NodeState.PROBATION, weight=0.03)

        async def ramping() -> bool:
            return await gateway.metric("unbroken_node_weight") == 0.03

        await until(ramping, 5)
        assert await gateway.metric("unbroken_node_state") == 1.0
        await store.redis.delete("unbroken:nodes")

        async def gone() -> bool:
            return await gateway.metric("unbroken_node_state") == 0.0

        await until(gone, 5)


async def test_operations_say_when_redis_is_away(redis_url: str) -> None:
    """503 with the reason instead of a stack trace; the process itself stays healthy."""
    async with running_gateway("redis://127.0.0.1:1/0") as gateway:
        status, problem = await _get(gateway, "/v1/nodes")
        assert (status, problem["title"]) == (503, "Redis is away")
        assert (await _get(gateway, "/readyz"))[0] == 503

        async def healthy() -> bool:
            return (await _get(gateway, "/healthz"))[0] == 200

        await until(healthy, 5)
        async with gateway.session.post(f"{gateway.url}/v1/completions", json={"model": "m", "prompt": "x"}) as answer:
            assert answer.status == 503
            assert answer.headers["Retry-After"]
            assert (await answer.json())["error"]["code"] == "starting"
