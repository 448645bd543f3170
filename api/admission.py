"""Admission: from a checked request to prompt ids, a budget and the node of the first attempt."""

import asyncio
import time
from dataclasses import dataclass

import structlog

from api.context import Context, Failed
from api.errors import ApiError, EngineRefusal, unavailable
from api.journaling import Record
from api.requests import Ask, budget
from api.tether import Severed
from engines.base import Engine, EngineError, EngineRejected
from recovery.journal import Assignment
from recovery.registry import Node
from recovery.requeue import Plan

log = structlog.get_logger()

NOT_NOW = frozenset({429, 503})
"""Engine answers that mean it has not begun the request."""
_STUMBLES = 1
_RENDER_S = 5.0
"""Deadline for turning a prompt into ids on one node; another one is asked after it."""


@dataclass(slots=True)
class Admission:
    """An admitted request."""

    node: Node
    """Of the first attempt; its identity is what a resume must match to stay exact."""
    plan: Plan
    record: Record
    early: Assignment | None = None
    """An assignment that came before the stream knew it was cut."""


def known_model(context: Context, model: str) -> None:
    """Refuse a model nobody serves. Raises ApiError: 404, or 503 while the nodes are not known yet."""
    if context.table.named(model):
        return
    if not context.table.loaded:
        raise unavailable("the gateway does not know its nodes yet", "starting")
    raise ApiError(404, f"the model {model!r} does not exist", code="model_not_found", param="model")


async def admit(context: Context, ask: Ask, request: str, ids: list[int]) -> Admission:
    """Find a node and have it turn the prompt into ids, waiting in the queue while there is none.

    ``ids`` is the list the delivered ids will be put into. Raises ApiError: 400, 404, 503, the engine's 4xx.
    """
    known_model(context, ask.model)
    deadline = time.monotonic() + context.settings.request.resume_deadline_s
    refused: set[str] = set()
    failed: list[Failed] = []
    while True:
        node = context.table.choose(ask.model, refused) or await _queue(context, ask.model, deadline)
        try:
            prompt_ids = await _prompt_ids(context, ask, request, node)
        except EngineRejected as error:
            # Two nodes, or one node twice, stumble over the same prompt: it is the prompt.
            if error.status < 500 or node.id in refused or len(refused) >= _STUMBLES:
                raise EngineRefusal(error.status, error.body) from error
            refused.add(node.id)
            failed.append((node, str(error)))
            continue
        if prompt_ids is not None:
            break
    context.blame(failed, node, request)
    max_tokens = budget(ask, len(prompt_ids), node.context, context.settings.request.default_max_tokens)
    plan = Plan("exact", prompt_ids, max_tokens, min(ask.min_tokens, max_tokens), 0)
    record = Record(
        request=request,
        model=ask.model,
        identity=node.identity,
        prompt_ids=prompt_ids,
        max_tokens=max_tokens,
        sampling=ask.sampling,
        ids=ids,
    )
    context.journal.moved(record, node.id, node.epoch, 0, in_store=False)
    return Admission(node, plan, record)


async def _queue(context: Context, model: str, deadline: float) -> Node:
    """Wait for a node, in a queue that is bounded in length and time."""
    wake = asyncio.Event()
    with context.queue_place(), context.table.parked(wake):
        while True:
            wake.clear()
            if not context.accepting:
                raise unavailable("the gateway is stopping", "gateway_stopping")
            node = context.table.choose(model)
            if node is not None:
                return node
            left = deadline - time.monotonic()
            if left <= 0:
                raise unavailable("no node became available in time")
            try:
                async with asyncio.timeout(min(left, 0.5)):
                    await wake.wait()
            except TimeoutError:
                continue


async def _prompt_ids(context: Context, ask: Ask, request: str, node: Node) -> list[int] | None:
    """Return the prompt's ids, or None when this node could not make them. Raises EngineRejected."""
    if isinstance(ask.prompt, tuple):
        return list(ask.prompt)
    engine = context.table.engine(node)
    try:
        with context.table.tied(node) as tether:
            return await tether.hold(lambda: _render(engine, ask), _RENDER_S)
    except EngineRejected as error:
        if error.status not in NOT_NOW:
            raise
        reason = str(error)
    except (EngineError, Severed) as error:
        reason = str(error)
        context.journal.evidence(node.id, node.epoch, request, f"prompt: {reason[:200]}")
    log.info("admission.node_failed", request=request, node=node.id, epoch=node.epoch, reason=reason[:200])
    context.table.suspect(node)
    return None


async def _render(engine: Engine, ask: Ask) -> list[int]:
    if isinstance(ask.prompt, str):
        return await engine.tokenize(ask.prompt, _RENDER_S)
    return await engine.render(ask.chat or {}, _RENDER_S)
