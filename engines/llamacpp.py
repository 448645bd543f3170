"""The llama.cpp adapter: token ids in and out of llama.cpp's HTTP server.

Works with the server `engines.llamacpp_server` starts, and with a stock llama-server at reduced exactness.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, ClassVar

import aiohttp
import orjson

from engines import llamacpp_wire as wire
from engines import sse
from engines.alignment import Alignment
from engines.base import (
    Capabilities,
    Chunk,
    EngineBroken,
    EngineError,
    EngineMute,
    EngineRejected,
    EngineTimeout,
    EngineUnreachable,
    FinishReason,
    Generation,
    Progress,
)
from engines.llamacpp_launch import launch_command
from engines.llamacpp_params import to_llamacpp

__all__ = ["LlamaCpp", "launch_command", "open_session"]

# llama.cpp fails now and then on a connection that has carried a stream: each request gets its own.
_HEADERS = {"Content-Type": "application/json", "Connection": "close"}
_FINISH: dict[str, FinishReason] = {"eos": "stop", "word": "stop", "limit": "length"}
_RENDER_FIELDS = ("messages", "tools", "tool_choice", "chat_template_kwargs", "reasoning_format")
_MAX_PIECES = 100_000
_TIDY_SECONDS = 0.5
"""Deadline of the small questions asked in mid-answer to recover withheld ids."""


class LlamaCpp:
    """One running llama.cpp server; ``session`` belongs to the caller (`open_session` makes a fitting one)."""

    kind: ClassVar[str] = "llamacpp"

    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self.url = url.rstrip("/")
        self._session = session
        self._pieces: dict[int, str] = {}

    async def healthy(self, timeout: float) -> bool:
        """Whether the model is loaded and served; False while loading, away, or silent for ``timeout`` s."""
        try:
            await self._ask("GET", "/health", None, timeout)
        except EngineError:
            return False
        return True

    async def capabilities(self, timeout: float) -> Capabilities:
        """Return what the engine says of itself; settings come from the tags our own server sets."""
        props, models = await asyncio.gather(
            self._ask("GET", "/props", None, timeout), self._ask("GET", "/v1/models", None, timeout)
        )
        try:
            model = models["data"][0]
            meta = model["meta"]
            context, total = props["default_generation_settings"]["n_ctx"], props["total_slots"]
        except (KeyError, IndexError, TypeError) as error:
            raise EngineBroken(f"{self.url} does not describe itself as llama.cpp does ({error!r})") from error
        tags = wire.own_tags(model.get("tags") or [])
        invariant = wire.invariant(tags)
        if "weights" in tags:
            identity = ":".join(["llamacpp", *(f"{key}={tags[key]}" for key in sorted(tags) if key != "spare-slots")])
        else:
            known = (props.get("build_info"), meta.get("ftype"), meta.get("n_params"), meta.get("size"))
            identity = ":".join(["llamacpp", *map(str, known)])
        return Capabilities(
            kind=self.kind,
            model=model["id"],
            identity=identity,
            context=context,
            slots=max(1, total - int(tags.get("spare-slots", "0"))),
            token_ids=True,
            invariant=invariant,
            deterministic_seed=invariant,
        )

    async def render(self, chat: Mapping[str, Any], timeout: float) -> list[int]:
        """Turn ``messages`` (and tools) into prompt ids, as the engine's own chat route does (requirements C4)."""
        body = {name: chat[name] for name in _RENDER_FIELDS if chat.get(name) is not None}
        async with _deadline(timeout):
            prompt = (await self._ask("POST", "/apply-template", body, timeout))["prompt"]
            return await self.tokenize(prompt, timeout)

    async def tokenize(self, text: str, timeout: float) -> list[int]:
        """Turn a plain prompt into ids; special tokens in it count, and the model's own are added."""
        return await self._ids(text, timeout, special=True)

    async def generate(self, order: Generation, timeout: float) -> AsyncGenerator[list[Chunk], None]:
        """Yield the chunks of each read; see `engines.base.Engine.generate`."""
        fields = to_llamacpp(order.sampling, order.min_tokens)
        fields |= {
            "prompt": list(order.prompt_ids),
            "n_predict": order.max_tokens,
            "stream": True,
            "return_tokens": True,
            "return_progress": True,
            "cache_prompt": True,
        }
        alignment = Alignment(strict=bool(fields.get("stop")))
        splitter = sse.Splitter()
        limits = aiohttp.ClientTimeout(total=None, connect=timeout, sock_connect=timeout)
        async with self._request("POST", "/completion", fields, limits, order.request_id) as response:
            async for read in response.content.iter_any():
                chunks = []
                for event in wire.events(splitter, read):
                    chunk = await self._chunk(wire.answer(event), alignment)
                    if chunk is not None:
                        chunks.append(chunk)
                if chunks:
                    yield chunks
                    if chunks[-1].finish is not None:
                        return
        raise EngineBroken("the answer ended without a final frame")

    async def micro_inference(self, timeout: float) -> int:
        """Have one token generated for this call alone and return its id (requirements B3).

        Raises EngineTimeout when late; the closed connection makes llama.cpp drop the request.
        """
        # Always the same prompt: llama.cpp takes the slot that ran it last, so users' caches stay.
        fields = {"prompt": [0], "n_predict": 1, "temperature": 0, "return_tokens": True, "cache_prompt": True}
        answer = await self._ask("POST", "/completion", fields, timeout)
        tokens = answer.get("tokens")
        if not tokens:
            raise EngineMute("the engine answered a probe without a token")
        return int(tokens[0])

    async def progress(self, timeout: float) -> Progress:
        """Return the engine loop's counters: its decode calls (prompt pieces included) and its slots' fill."""
        slots, metrics = await asyncio.gather(
            self._ask("GET", "/slots", None, timeout), self._ask("GET", "/metrics", None, timeout, parse=wire.metrics)
        )
        room = sum(slot["n_ctx"] for slot in slots) or 1
        used = sum(slot.get("n_prompt_tokens", 0) for slot in slots if slot["is_processing"])
        try:
            return Progress(
                counter=int(metrics["llamacpp:n_decode_total"]),
                running=int(metrics["llamacpp:requests_processing"]),
                waiting=int(metrics["llamacpp:requests_deferred"]),
                free_ratio=max(0.0, 1.0 - used / room),
                prefilling=sum(wire.prefilling(slot) for slot in slots),
            )
        except KeyError as error:
            raise EngineBroken(f"{self.url}/metrics lacks {error}") from error

    async def _chunk(self, answer: dict[str, Any], alignment: Alignment) -> Chunk | None:
        """Turn one event into a chunk; None while the engine holds its text back."""
        if "prompt_progress" in answer:
            return Chunk(text="", cached=int(answer["prompt_progress"]["cache"]))
        try:
            text, ids, last = answer["content"], answer["tokens"], answer["stop"]
            predicted = answer["tokens_predicted"]
        except KeyError as error:
            raise EngineBroken(f"an event of the answer lacks {error}") from error
        logprobs = answer.get("completion_probabilities")
        if last and answer.get("stop_type") == "limit" and not alignment.hopeless:
            text += await self._held_back(alignment)
        found: tuple[int, ...] | None = None
        if not alignment.hopeless:
            if alignment.feed(text, ids, predicted):
                found = tuple(ids)
            elif text or last:
                found = await self._recover(alignment)
        if last:
            return _final(answer, text, found, logprobs)
        if not text:
            return None
        return Chunk(text=text, ids=found or (), sure=found is not None, logprobs=logprobs)

    async def _held_back(self, alignment: Alignment) -> str:
        """Return text withheld for a stop string that the token limit cut short: llama.cpp forgets to send it."""
        run = alignment.run
        if run is None or not run.complete:
            return ""
        try:
            whole = "".join([await self._piece(token) for token in run.ids])
        except EngineError:
            return ""
        return whole.removeprefix(run.text) if whole.startswith(run.text) else ""

    async def _recover(self, alignment: Alignment) -> tuple[int, ...] | None:
        """Find the ids of the run that has gathered in ``alignment``, or note that they stay unknown for now."""
        run = alignment.run
        if run is None:
            return ()
        found: tuple[int, ...] | None = None
        try:
            if run.complete:
                found = alignment.accept_pieces([await self._piece(token) for token in run.ids])
            if found is None and run.text:
                found = alignment.accept_ids(await self._ids(run.text, _TIDY_SECONDS, special=False))
        except EngineError:
            found = None  # the text is good without ids; if the engine is gone, its stream will say so
        if found is None:
            alignment.failed()
        return found

    async def _piece(self, token: int) -> str:
        """Return the text of one id as it appears in an answer: a control token has none."""
        piece = self._pieces.get(token)
        if piece is None:
            answer = await self._ask("POST", "/detokenize", {"tokens": [token]}, _TIDY_SECONDS)
            piece = str(answer["content"])
            looks_special = piece[:1] in ("<", "[") and piece[-1:] in (">", "]") and len(piece) > 2
            if looks_special and await self._ids(piece, _TIDY_SECONDS, special=False) != [token]:
                piece = ""
            if len(self._pieces) < _MAX_PIECES:
                self._pieces[token] = piece
        return piece

    async def _ids(self, text: str, timeout: float, *, special: bool) -> list[int]:
        body = {"content": text, "add_special": special, "parse_special": special}
        answer = await self._ask("POST", "/tokenize", body, timeout)
        return list(map(int, answer["tokens"]))

    async def _ask(
        self, method: str, path: str, body: Mapping[str, Any] | None, timeout: float, parse: Any = orjson.loads
    ) -> Any:
        """Ask for one whole answer within ``timeout`` s, connection included."""
        async with (
            _deadline(timeout),
            self._request(method, path, body, aiohttp.ClientTimeout(total=None)) as response,
        ):
            read = await response.read()
        try:
            return parse(read)
        except ValueError as error:
            raise EngineBroken(f"{self.url}{path} did not answer as llama.cpp does") from error

    @asynccontextmanager
    async def _request(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None,
        limits: aiohttp.ClientTimeout,
        request_id: str = "",
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Open one answer with errors in our words; leaving early closes it, which aborts it in the engine."""
        headers = {**_HEADERS, "X-Request-Id": request_id} if request_id else _HEADERS
        data = None if body is None else orjson.dumps(body)
        try:
            response = await self._session.request(method, self.url + path, data=data, headers=headers, timeout=limits)
            try:
                if response.status >= 400:
                    raise EngineRejected(response.status, await response.read())
                yield response
            finally:
                response.close()
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, aiohttp.InvalidURL) as error:
            raise EngineUnreachable(f"{self.url} cannot be reached: {error}") from error
        except aiohttp.ClientError as error:
            raise EngineBroken(f"{self.url} broke off: {error!r}") from error


def open_session() -> aiohttp.ClientSession:
    """Return a session fit for llama.cpp: a fresh connection for each request, as many as it takes."""
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True, limit=0))


def _final(answer: Mapping[str, Any], text: str, ids: tuple[int, ...] | None, logprobs: Any) -> Chunk:
    stop_type = answer.get("stop_type")
    if stop_type not in _FINISH:
        raise EngineBroken(f"the answer ended with stop_type {stop_type!r}")
    return Chunk(
        text=text,
        ids=ids or (),
        sure=ids is not None,
        finish=_FINISH[stop_type],
        cached=answer.get("timings", {}).get("cache_n"),
        generated=answer["tokens_predicted"],
        logprobs=logprobs,
    )


@asynccontextmanager
async def _deadline(timeout: float) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(timeout):
            yield
    except TimeoutError as error:
        raise EngineTimeout(f"no answer within {timeout:g} s") from error
