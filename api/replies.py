"""The two forms of an answer, as raw ASGI: a stream of events with pings, and a whole one.

Both watch for the client's leaving, which ends the request within a loop turn.
"""

import asyncio
import time
from typing import cast

import structlog
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from api import sse
from api.context import Context
from api.errors import ApiError, api_response
from api.requests import Ask
from api.streams import Piece, Stream

log = structlog.get_logger()

_HEADERS_WITHIN_S = 0.9
"""When headers go out although there is nothing to say yet (promise: within 1 s)."""


class Reply(Response):
    """What both forms share: running the stream, the client's leaving, errors."""

    def __init__(self, context: Context, stream: Stream, ask: Ask) -> None:
        super().__init__()
        self.started = False
        self._context = context
        self._stream = stream
        self._ask = ask
        self._created = int(time.time())
        self._left = False
        self._ended = False
        """Whether the last byte has been handed over: leaving is no leaving any more."""
        self._timer: asyncio.Timeout | None = None
        prefix = "chatcmpl-" if ask.kind == "chat" else "cmpl-"
        self._answer_id = prefix + stream.request

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the request; what the client gets is complete or ends in an error, never silently."""
        self._scope, self._receive, self._send = scope, receive, send
        main = cast("asyncio.Task[None]", asyncio.current_task())
        attendant = asyncio.create_task(self._attend(main))
        try:
            await self._stream.run(self)
        except ApiError as error:
            await self.fail(error)
        except asyncio.CancelledError:
            if not self._left:
                raise
            main.uncancel()
            log.info("stream.left", request=self._stream.request)
        except Exception as error:  # a stream must not end silently, whatever went wrong
            log.exception("stream.bug", request=self._stream.request)
            await self.fail(ApiError(500, f"internal error: {type(error).__name__}", code="internal_error"))
        finally:
            attendant.cancel()
            await asyncio.gather(attendant, return_exceptions=True)

    async def deliver(self, pieces: list[Piece]) -> None:
        """See `api.streams.Client`."""
        raise NotImplementedError

    async def pause(self) -> None:
        """See `api.streams.Client`."""

    async def resumed(self, note: str) -> None:
        """See `api.streams.Client`."""

    async def finish(self, reason: str, usage: dict[str, int]) -> None:
        """See `api.streams.Client`."""
        raise NotImplementedError

    async def fail(self, error: ApiError) -> None:
        """Answer with an error: nothing was sent yet."""
        self.started = self._ended = True
        error.headers.setdefault("unbroken-request-id", self._stream.request)
        await api_response(error)(self._scope, self._receive, self._send)

    def _about(self) -> dict[str, str]:
        """Headers that say how the request is served; `unbroken-node` is the first attempt's, once it is known."""
        about = {"unbroken-request-id": self._stream.request, "unbroken-resume": self._stream.planned}
        return {**about, "unbroken-node": self._stream.node} if self._stream.node else about

    def _due(self) -> float | None:
        """Loop time at which `_beat` is wanted."""
        return None

    async def _beat(self) -> None:
        """Say that the stream is alive."""

    async def _attend(self, main: asyncio.Task[None]) -> None:
        """Watch for the client's leaving, and beat when nothing was said for long."""
        while True:
            timer = asyncio.timeout_at(self._due())
            try:
                async with timer:
                    self._timer = timer
                    try:
                        message: Message = await self._receive()
                    finally:
                        self._timer = None
            except TimeoutError:
                await self._beat()
                continue
            if message["type"] == "http.disconnect":
                if not self._ended:
                    self._left = True
                    main.cancel()
                return


class StreamReply(Reply):
    """Server-sent events: headers within a second, pings while there is nothing to say, exactly one end."""

    def __init__(self, context: Context, stream: Stream, ask: Ask) -> None:
        super().__init__(context, stream, ask)
        self._framer = sse.Framer(
            ask.kind,
            self._answer_id,
            self._created,
            ask.model,
            include_usage=ask.include_usage,
            token_ids=ask.return_token_ids,
        )
        settings = context.settings.request
        self._style = settings.ping_style
        self._ping = sse.comment("ping", self._style)
        self._interval = settings.ping_interval_s
        self._interval_paused = min(settings.ping_interval_paused_s, settings.ping_interval_s)
        self._loop = asyncio.get_running_loop()
        self._said_at = self._loop.time()
        self._paused = False

    async def deliver(self, pieces: list[Piece]) -> None:
        """Send all events of one read at once."""
        text = self._framer.text
        await self._say(b"".join([text(piece, ids) for piece, ids in pieces]))

    async def pause(self) -> None:
        """Ping now, and from now on at the shorter interval."""
        self._paused = True
        if self.started:
            await self._say(self._ping)
        timer = self._timer
        # One that has just run out beats by itself, and can no longer be moved.
        if timer is not None and not timer.expired():
            timer.reschedule(self._due())

    async def resumed(self, note: str) -> None:
        """Say how the stream goes on, in a comment that clients skip."""
        self._paused = False
        await self._say(sse.comment(note, self._style))

    async def finish(self, reason: str, usage: dict[str, int]) -> None:
        """Send the end."""
        await self._say(self._framer.end(reason, usage), more=False)

    async def fail(self, error: ApiError) -> None:
        """Answer with a status if nothing was sent yet, else with the one error event."""
        if not self.started:
            await super().fail(error)
        else:
            await self._say(sse.error(error.body), more=False)

    async def _say(self, data: bytes, *, more: bool = True) -> None:
        self._said_at = self._loop.time()
        self._ended = not more
        if not self.started:
            await self._start()
        await self._send({"type": "http.response.body", "body": data, "more_body": more})

    async def _start(self) -> None:
        self.started = True
        headers = [
            (b"content-type", b"text/event-stream; charset=utf-8"),
            (b"cache-control", b"no-cache"),
            (b"x-accel-buffering", b"no"),
            *((name.encode(), value.encode()) for name, value in self._about().items()),
        ]
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})

    def _due(self) -> float:
        if not self.started:
            return self._said_at + _HEADERS_WITHIN_S
        waiting = self._paused or self._stream.queued
        return self._said_at + (self._interval_paused if waiting else self._interval)

    async def _beat(self) -> None:
        if self._loop.time() >= self._due():
            await self._say(self._ping)


class WholeReply(Reply):
    """One JSON document; the same machinery, collected. Pings are impossible here: the client waits."""

    async def deliver(self, pieces: list[Piece]) -> None:
        """Nothing to do: the stream's delivery keeps the text."""

    async def finish(self, reason: str, usage: dict[str, int]) -> None:
        """Send the document."""
        delivery, ask = self._stream.delivery, self._ask
        ids = delivery.ids if ask.return_token_ids else None
        body = sse.whole(ask.kind, self._answer_id, self._created, ask.model, delivery.text, reason, usage, ids)
        self.started = self._ended = True
        await Response(body, 200, self._about(), "application/json")(self._scope, self._receive, self._send)
