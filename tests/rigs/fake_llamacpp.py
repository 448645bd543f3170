"""FakeLlamaCpp: llama.cpp's wire over real HTTP, misbehaving as told; for faults a real engine cannot be made to show.

Its answer is a function of the position alone, and it checks the ids it is asked to go on from: a resume from
wrong ids gives a wrong answer.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import orjson
from aiohttp import web

from tests.rigs.ports import free_port

Fate = Literal["", "fin", "silent", "reset"]
"""What happens after `cut_after` tokens: nothing, the body ends in good order, silence, the connection breaks."""
Probe = Literal["good", "mute", "empty", "frames"]
"""What a probe gets: a token, nothing, a whole answer without a token, bytes without end that hold no token."""

_TAGS = ["unbroken:weights=fake", "unbroken:threads=1", "unbroken:ubatch=32", "unbroken:kv=separate"]
_FIRST_ID = 1_000
WRONG = " WRONG"
"""Text of a token after a prompt that ends in other ids than those of the answer so far."""


def token(position: int) -> int:
    """Return the answer's id at a position."""
    return _FIRST_ID + position


def text(first: int, after: int) -> str:
    """Return the answer's text from one position up to another."""
    return "".join(f" w{position}" for position in range(first, after))


@dataclass(slots=True)
class FakeLlamaCpp:
    """One engine that says it is healthy, whatever it does. Fields may be changed while it runs."""

    port: int = field(default_factory=free_port)
    prompt: int = 3
    """Tokens of every request's original prompt; what follows in a prompt is taken for delivered answer."""
    cut_after: int = 0
    fate: Fate = ""
    first_token: asyncio.Event | None = None
    """No token comes before it is set."""
    token_s: float = 0.0
    """Pause before each token."""
    noise: bytes = b""
    """Written before, between and after events."""
    line_end: bytes = b"\n"
    probe: Probe = "good"
    probes: int = 0
    """Probes that came."""
    stuck: bool = False
    """Whether its loop stands: /slots and /metrics go on saying the same, with work pending."""
    counter: int = 0
    live: int = 0
    """Generations under way."""
    aborted: int = 0
    """Generations whose client left."""
    orders: list[dict[str, Any]] = field(default_factory=list)
    refuses: Callable[[dict[str, Any]], int] | None = None
    """HTTP status an order is refused with; 0: it is served."""

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}"

    async def health(self, _request: web.Request) -> web.Response:
        """Say 200, always."""
        return web.json_response({"status": "ok"})

    async def props(self, _request: web.Request) -> web.Response:
        """Describe the engine."""
        return web.json_response({"default_generation_settings": {"n_ctx": 4_096}, "total_slots": 4})

    async def models(self, _request: web.Request) -> web.Response:
        """Describe the model."""
        return web.json_response({"data": [{"id": "smollm2", "meta": {}, "tags": _TAGS}]})

    async def tokenize(self, _request: web.Request) -> web.Response:
        """Turn any text into one and the same id: text never leads back to the ids it came from."""
        return web.json_response({"tokens": [3]})

    async def slots(self, _request: web.Request) -> web.Response:
        """Show no use."""
        return web.json_response([{"n_ctx": 1_024, "is_processing": False}])

    async def metrics(self, _request: web.Request) -> web.Response:
        """Count up, unless stuck."""
        self.counter += not self.stuck
        return web.Response(
            text=f"llamacpp:n_decode_total {self.counter}\n"
            f"llamacpp:requests_processing {max(self.live, int(self.stuck))}\nllamacpp:requests_deferred 0\n"
        )

    async def completion(self, request: web.Request) -> web.StreamResponse:
        """Generate, or answer a probe."""
        order = orjson.loads(await request.read())
        if not order.get("stream"):
            return await self._probe(request)
        self.orders.append(order)
        status = self.refuses(order) if self.refuses is not None else 0
        if status:
            return web.json_response({"error": {"code": status, "message": "as the test wants"}}, status=status)
        self.live += 1
        try:
            return await self._generate(request, order)
        except (asyncio.CancelledError, ConnectionError):
            self.aborted += 1
            raise
        finally:
            self.live -= 1

    async def _generate(self, request: web.Request, order: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        given = order["prompt"][self.prompt :]
        right = given == [token(position) for position in range(len(given))]
        await self._say(response, {"prompt_progress": {"cache": 0}})
        if self.first_token is not None:
            await self.first_token.wait()
        for done in range(order["n_predict"]):
            if self.fate and done >= self.cut_after:
                return await self._meet_fate(request, response)
            position = len(given) + done
            await asyncio.sleep(self.token_s)
            piece = text(position, position + 1) if right else WRONG
            await self._say(
                response, {"content": piece, "tokens": [token(position)], "stop": False, "tokens_predicted": done + 1}
            )
        if self.fate and self.cut_after == order["n_predict"]:
            return await self._meet_fate(request, response)
        end = {"content": "", "tokens": [], "stop": True, "stop_type": "limit", "tokens_predicted": order["n_predict"]}
        await self._say(response, end)
        await response.write_eof()
        return response

    async def _say(self, response: web.StreamResponse, event: dict[str, Any]) -> None:
        end = self.line_end
        await response.write(self.noise + b"data: " + orjson.dumps(event) + end + end + self.noise)

    async def _meet_fate(self, request: web.Request, response: web.StreamResponse) -> web.StreamResponse:
        if self.fate == "silent":
            await asyncio.sleep(3_600)
        if self.fate == "reset":
            assert request.transport is not None
            request.transport.abort()
            return response
        await response.write_eof()
        return response

    async def _probe(self, request: web.Request) -> web.StreamResponse:
        self.probes += 1
        if self.probe == "mute":
            await asyncio.sleep(3_600)
        if self.probe == "frames":
            response = web.StreamResponse(headers={"Content-Type": "application/json"})
            await response.prepare(request)
            while True:
                await response.write(b" ")
                await asyncio.sleep(0.1)
        return web.json_response({"content": "", "tokens": [7] if self.probe == "good" else []})


@contextlib.asynccontextmanager
async def fake_llamacpp(**fields: Any) -> AsyncIterator[FakeLlamaCpp]:
    """Serve a fake with some fields set; it is gone afterwards, whatever it was doing."""
    engine = FakeLlamaCpp(**fields)
    app = web.Application()
    for path in ("health", "props", "slots", "metrics"):
        app.router.add_get(f"/{path}", getattr(engine, path))
    app.router.add_get("/v1/models", engine.models)
    app.router.add_post("/tokenize", engine.tokenize)
    app.router.add_post("/completion", engine.completion)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", engine.port).start()
        yield engine
    finally:
        await runner.cleanup()
