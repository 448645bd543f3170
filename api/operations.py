"""The operations API: recovery jobs, nodes, health and figures (design, section 11). Errors follow RFC 9457."""

import asyncio
import time
from collections.abc import AsyncGenerator
from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Depends, Query, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response, StreamingResponse

from api.auth import operator_key
from api.context import Context
from api.errors import Problem
from api.views import job_view, node_view, plan_view
from recovery import jobs, journal, registry
from recovery.auth import Key
from recovery.errors import StoreUnavailable
from recovery.registry import Node, NodeState
from recovery.store import available

router = APIRouter(tags=["operations"])
guarded = APIRouter(prefix="/v1", tags=["operations"], dependencies=[Depends(operator_key)])

_POLL_S = 0.25
_PING_S = 15.0
_READY_AGE_S = 5.0
_GIVEN_UP = frozenset({NodeState.NEEDS_OPERATOR, NodeState.QUARANTINED})


class JobOrder(BaseModel):
    """What an operator wants done."""

    model_config = ConfigDict(extra="forbid")

    node: Annotated[str, Field(min_length=1, max_length=200)]
    action: str = "recover"
    dry_run: bool = False
    reason: Annotated[str, Field(max_length=1_000)] = ""


@guarded.post("/recovery/jobs", status_code=202)
async def create_job(order: JobOrder, request: Request, key: Annotated[Key | None, Depends(operator_key)]) -> Response:
    """Recover a node by hand; `dry_run` shows what would be done and changes nothing."""
    store = _context(request).store
    if order.action not in jobs.PLANS:
        raise Problem(
            422,
            "Action not supported",
            f"the action {order.action!r} is not supported; supported: {', '.join(sorted(jobs.PLANS))}",
            supported=sorted(jobs.PLANS),
        )
    node = await registry.get(store, order.node)
    live = await jobs.live_of(store, node.id)
    if live is not None:
        raise _conflict(live, f"node {node.id} is already being recovered by job {live.id}")
    hindrance = _hindrance(node)
    if order.dry_run:
        entries = await journal.entries_on(store, node.id, node.epoch)
        plan = plan_view(node, entries, await registry.all_nodes(store), order.action)
        return _json({**plan, "needs_operator": hindrance})
    if hindrance and node.state in _GIVEN_UP:
        raise Problem(409, "GPU lost", hindrance)  # it is fenced and its requests have moved: nothing else can be done
    by = f"api:{key.name}" if key else "api"
    job, created = await jobs.create(
        store,
        node.id,
        node.epoch,
        action=order.action,
        cause="manual",
        evidence=f"ordered by hand over the API by {by}",
        started_by=by,
        reason=order.reason,
    )
    if not created:
        raise _conflict(job, f"epoch {job.epoch} of node {node.id} already had job {job.id} ({job.state.value})")
    return _json(job_view(job), 202, {"Location": _address(job)})


@guarded.get("/recovery/jobs")
async def list_jobs(request: Request, limit: Annotated[int, Query(ge=1, le=1_000)] = 100, node: str = "") -> Response:
    """List the newest jobs, newest first."""
    found = await jobs.newest(_context(request).store, limit)
    return _json({"object": "list", "data": [job_view(job) for job in found if not node or job.node == node]})


@guarded.get("/recovery/jobs/{job}")
async def show_job(job: str, request: Request) -> Response:
    """Show a job with its steps, their times and outcomes."""
    return _json(job_view(await jobs.get(_context(request).store, job)))


@guarded.get("/recovery/jobs/{job}/events")
async def job_events(job: str, request: Request) -> Response:
    """Follow a job's audit trail as server-sent events, until it ends; resumable by `Last-Event-ID`."""
    context = _context(request)
    await jobs.get(context.store, job)
    after = request.headers.get("last-event-id", "-")
    return StreamingResponse(
        _follow(context, job, after),
        media_type="text/event-stream",
        headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"},
    )


@guarded.get("/nodes")
async def list_nodes(request: Request) -> Response:
    """List all nodes."""
    return _json(
        {"object": "list", "data": [node_view(node) for node in await registry.all_nodes(_context(request).store)]}
    )


@guarded.get("/nodes/{node}")
async def show_node(node: str, request: Request) -> Response:
    """Show one node."""
    return _json(node_view(await registry.get(_context(request).store, node)))


@router.get("/healthz")
async def healthz() -> Response:
    """Say that the process is alive."""
    return _json({"status": "ok"})


@router.get("/readyz")
async def readyz(request: Request) -> Response:
    """Say whether requests can be served: Redis answers and at least one node does."""
    context = _context(request)
    problems = []
    try:
        with available():
            await context.store.redis.ping()
    except StoreUnavailable as error:
        problems.append(str(error))
    if not any(context.table.choose(model) for model in context.table.models()):
        problems.append("no node is available")
    if not context.accepting:
        problems.append("the gateway is stopping")
    return _json({"status": "not ready" if problems else "ok", "problems": problems}, 503 if problems else 200)


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """Give the figures in Prometheus' format."""
    return Response(_context(request).metrics.render(), media_type="text/plain; version=0.0.4")


async def _follow(context: Context, job: str, after: str) -> AsyncGenerator[bytes]:
    said = time.monotonic()
    while context.accepting:
        try:
            # The state is read first: entries written before the end are then never missed.
            live = (await jobs.get(context.store, job)).state in jobs.LIVE
            entries = await jobs.audit(context.store, job, after)
        except StoreUnavailable:
            live, entries = True, []
        for after, entry in entries:
            yield b"id: %b\nevent: %b\ndata: %b\n\n" % (
                after.encode(), str(entry.get("event", "entry")).encode(), orjson.dumps(entry),
            )  # fmt: skip
            said = time.monotonic()
        if not live:
            return
        if time.monotonic() - said > _PING_S:
            said = time.monotonic()
            yield b": ping\n\n"
        await asyncio.sleep(_POLL_S)


def _hindrance(node: Node) -> str:
    """Say why no engine can be started on a node, empty when nothing is known against it."""
    if node.gpu != "GPU_LOST":
        return ""
    return (
        f"the GPU of node {node.id} is lost ({node.extra.get('gpu_detail', '')}): no engine is started on it before a "
        "reset of the GPU or a reboot of the host; where its agent says GPU_LOST even then, start the agent anew"
    )


def _conflict(job: jobs.Job, detail: str) -> Problem:
    where = _address(job)
    return Problem(409, "Node has a job", detail, headers={"Location": where}, job=job.id, instance=where)


def _address(job: jobs.Job) -> str:
    return f"/v1/recovery/jobs/{job.id}"


def _context(request: Request) -> Context:
    context: Context = request.app.state.context
    return context


def _json(document: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(orjson.dumps(document), status, headers, "application/json")
