"""The inference routes: OpenAI's chat completions, completions and models."""

import time
import uuid
from typing import Any, Literal

import orjson
from fastapi import APIRouter, Depends, Request
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from api.admission import known_model
from api.auth import inference_key
from api.context import Context
from api.errors import ApiError, unavailable
from api.replies import StreamReply, WholeReply
from api.requests import MAX_BODY, parse
from api.streams import Stream

router = APIRouter(prefix="/v1", tags=["inference"], dependencies=[Depends(inference_key)])

_COMMON: dict[str, Any] = {
    "model": {"type": "string"},
    "stream": {"type": "boolean", "default": False},
    "stream_options": {"type": "object", "properties": {"include_usage": {"type": "boolean"}}},
    "max_tokens": {"type": "integer", "minimum": 1},
    "temperature": {"type": "number", "minimum": 0},
    "top_p": {"type": "number"},
    "seed": {"type": "integer"},
    "stop": {"oneOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]},
    "return_token_ids": {"type": "boolean", "description": "Add `token_ids` to each choice, as vLLM does."},
}
_MESSAGES = {"type": "array", "minItems": 1, "items": {"type": "object", "required": ["role"]}}
_PROMPT = {"oneOf": [{"type": "string"}, {"type": "array", "items": {"type": "integer", "minimum": 0}}]}


def _documented(field: str, schema: dict[str, Any]) -> dict[str, Any]:
    body = {"type": "object", "required": ["model", field], "properties": {**_COMMON, field: schema}}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": body}}}}


@router.post("/chat/completions", openapi_extra=_documented("messages", _MESSAGES))
async def chat_completions(request: Request) -> Response:
    """Answer a chat. A stream survives the death of the engine under it."""
    return await _serve(request, "chat")


@router.post("/completions", openapi_extra=_documented("prompt", _PROMPT))
async def completions(request: Request) -> Response:
    """Continue a text, or a list of token ids."""
    return await _serve(request, "completion")


@router.get("/models")
async def models(request: Request) -> Response:
    """List the models that nodes are registered for."""
    context: Context = request.app.state.context
    listed = []
    for name in context.table.models():
        nodes = context.table.named(name)
        listed.append({
            "id": name,
            "object": "model",
            "created": 0,
            "owned_by": "unbroken",
            "max_model_len": min(node.context for node in nodes),
            "nodes": sorted(node.id for node in nodes),
        })  # fmt: skip
    return Response(orjson.dumps({"object": "list", "data": listed}), media_type="application/json")


async def _serve(request: Request, kind: Literal["chat", "completion"]) -> Response:
    context: Context = request.app.state.context
    if not context.accepting:
        raise unavailable("the gateway is stopping", "gateway_stopping")
    ask = parse(kind, await _body(request))
    known_model(context, ask.model)
    stream = Stream(context, ask, f"{int(time.time()):x}{uuid.uuid4().hex[:16]}")
    reply = StreamReply if ask.stream else WholeReply
    return reply(context, stream, ask)


async def _body(request: Request) -> bytes:
    too_large = ApiError(413, f"the body is larger than {MAX_BODY} bytes", code="body_too_large")
    declared = request.headers.get("content-length", "0")
    if declared.isdecimal() and int(declared) > MAX_BODY:
        raise too_large
    parts, size = [], 0
    try:
        async for part in request.stream():
            size += len(part)
            if size > MAX_BODY:
                raise too_large
            parts.append(part)
    except ClientDisconnect as error:
        raise ApiError(400, "the client left before its request was whole", code="client_left") from error
    return b"".join(parts)
