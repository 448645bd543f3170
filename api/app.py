"""The application: routes, error shapes, and the lifespan that owns everything a gateway holds open."""

import asyncio
import secrets
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import TypeVar, cast

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from api import inference, operations
from api.context import Context
from api.errors import ApiError, Problem, api_response, problem_response, unavailable
from api.journaling import JournalWriter
from api.metrics import Metrics
from api.resume import read_inbox
from api.routing import RoutingTable
from api.witness import Witness
from engines.llamacpp import open_session
from recovery.auth import Keys
from recovery.config import Settings
from recovery.errors import StoreUnavailable, UnknownJob, UnknownNode
from recovery.stopping import stop_tasks
from recovery.store import connect

log = structlog.get_logger()
E = TypeVar("E", bound=Exception)

DRAIN_S = 4.0
"""Time running streams get to end when the gateway stops."""
_ABORT_S = 1.0


def create_app(settings: Settings) -> FastAPI:
    """Return the gateway's application. Raises SettingsError when the keys file is wrong."""
    app = FastAPI(
        title="Unbroken",
        summary="Token streams that outlive the engine under them.",
        version="1",
        lifespan=_lifespan,
        openapi_url="/openapi.json",
    )
    app.state.settings = settings
    app.state.keys = Keys.from_file(settings.auth.keys_file)
    app.include_router(inference.router)
    app.include_router(operations.guarded)
    app.include_router(operations.router)
    _handle(app, ApiError, lambda _request, error: api_response(error))
    _handle(app, Problem, lambda _request, problem: problem_response(problem))
    _handle(app, UnknownNode, _unknown)
    _handle(app, UnknownJob, _unknown)
    _handle(app, StoreUnavailable, _store_away)
    _handle(app, RequestValidationError, _not_valid)
    _handle(app, HTTPException, _http)
    return app


async def drain(app: FastAPI, limit_s: float = DRAIN_S) -> None:
    """Take no new work, let running streams end for ``limit_s``, then end the rest with an error event."""
    context: Context = app.state.context
    context.accepting = False
    await _until_idle(context, limit_s)
    for stream in list(context.streams.values()):
        stream.abort(unavailable("the gateway is stopping", "gateway_stopping"))
    await _until_idle(context, _ABORT_S)


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncGenerator[None]:
    settings: Settings = app.state.settings
    name = settings.gateway.id or f"{socket.gethostname()}-{secrets.token_hex(3)}"
    store = connect(settings.redis)
    session = open_session()
    metrics = Metrics()
    table = RoutingTable(settings, store, session)
    metrics.show_nodes(lambda: table.nodes.values())
    journal = JournalWriter(store, name, settings.request, metrics)
    context = app.state.context = Context(name, settings, store, table, journal, metrics)
    tasks: list[asyncio.Task[None]] = []
    try:
        try:
            await store.check()
            await table.refresh()
        except StoreUnavailable as error:
            log.warning("gateway.redis_away", error=str(error), hint="streams start once Redis has been seen")
        if app.state.keys.open_to_all:
            log.warning("gateway.open_to_all", hint="set auth.keys_file to ask for API keys")
        witness = Witness(store, name, table.pulses)
        for work in (table.keep_fresh, table.follow_events, partial(read_inbox, context), journal.run, witness.run):
            tasks.append(asyncio.create_task(_keep_running(work)))
        yield
    finally:
        context.accepting = False
        await stop_tasks(*tasks)
        await journal.aclose()
        await session.close()
        await store.aclose()


async def _keep_running(work: Callable[[], Awaitable[None]]) -> None:
    """Run background work that must not end: whatever it stumbles over is logged, then it goes on."""
    while True:
        try:
            await work()
        except Exception:
            log.exception("gateway.background_failed")
        await asyncio.sleep(1.0)


async def _until_idle(context: Context, limit_s: float) -> None:
    loop = asyncio.get_running_loop()
    end = loop.time() + limit_s
    while context.streams and loop.time() < end:  # noqa: ASYNC110 - once a process: an event is not worth it
        await asyncio.sleep(0.05)


def _handle(app: FastAPI, kind: type[E], answer: Callable[[Request, E], Response]) -> None:
    async def handler(request: Request, error: Exception) -> Response:
        return answer(request, cast("E", error))

    app.add_exception_handler(kind, handler)


def _unknown(_request: Request, error: Exception) -> Response:
    return problem_response(Problem(404, "Not found", str(error)))


def _store_away(_request: Request, error: StoreUnavailable) -> Response:
    return problem_response(Problem(503, "Redis is away", str(error), headers={"Retry-After": "2"}))


def _not_valid(_request: Request, error: RequestValidationError) -> Response:
    fields = [
        {"field": ".".join(str(part) for part in problem["loc"]), "reason": problem["msg"]}
        for problem in error.errors()
    ]
    detail = "; ".join(f"{problem['field']}: {problem['reason']}" for problem in fields)
    return problem_response(Problem(422, "Request not valid", detail, errors=fields))


def _http(request: Request, error: HTTPException) -> Response:
    where = f"{request.method} {request.url.path}"
    headers = dict(error.headers or {})
    if request.url.path.startswith(("/v1/chat", "/v1/completions", "/v1/models")):
        code = str(error.detail).lower().replace(" ", "_")
        return api_response(ApiError(error.status_code, f"{where}: {error.detail}", code=code, headers=headers))
    return problem_response(Problem(error.status_code, str(error.detail), where, headers=headers))
