"""One client's request from admission to its last byte, over as many attempts as it takes (requirements C1–C3).

The stream owns its attempts; the client's side (`Client`) only writes. What is new to the client is decided
in `api.delivery`, where a cut request goes in `api.resume`.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import structlog

from api import sse
from api.admission import NOT_NOW, Admission, admit
from api.context import Context, Failed
from api.delivery import Delivery, Diverged
from api.errors import ApiError, EngineRefusal
from api.journaling import Record
from api.requests import Ask
from api.resume import Pause, next_node, plan_for, planned_class
from api.tether import Severed, Tether
from engines.base import Chunk, EngineError, EngineRejected, EngineUnreachable, Generation
from recovery.journal import Assignment
from recovery.registry import Node
from recovery.requeue import Exactness, Plan

log = structlog.get_logger()

Piece = tuple[str, Sequence[int]]
_VERDICTS = frozenset({"fenced", "assigned"})
_HURRY = frozenset({"unreachable", "busy", "assigned", "left"})
"""Causes after which nobody's assignment is waited for: there is no death that a job would be about."""


class Client(Protocol):
    """The client's side of a stream."""

    async def deliver(self, pieces: list[Piece]) -> None:
        """Hand over text and its token ids."""
        ...

    async def pause(self) -> None:
        """The stream stands still from now on: say so, and go on saying so."""
        ...

    async def resumed(self, note: str) -> None:
        """The stream goes on; `note` says how."""
        ...

    async def finish(self, reason: str, usage: dict[str, int]) -> None:
        """The answer is whole."""
        ...


@dataclass(frozen=True, slots=True)
class Failure:
    """How an attempt ended before its answer did."""

    cause: str
    seen: bool
    """Whether the engine may have begun it: only then does it count as a try."""


class Stream:
    """One request. `run` is its whole life; `offer`, `abort` reach it from outside."""

    def __init__(self, context: Context, ask: Ask, request: str) -> None:
        self.request = request
        self.ask = ask
        self.delivery = Delivery()
        self.pause: Pause | None = None
        self._context = context
        self._settings = context.settings.request
        self._admission: Admission | None = None
        self._tether: Tether | None = None
        self._abort: ApiError | None = None
        self._parked = False
        """Whether it is looking for its next node."""
        self._tries = 0
        self._failed: list[Failed] = []
        self._last_new = 0.0
        self._sent_at = 0.0
        self._reused: int | None = None
        """Prompt tokens the current attempt's engine had in its cache, once it said so."""
        self._resumed: tuple[Exactness, str, int] | None = None
        """Class, cause and watermark of a resume whose first new token is still to come."""

    @property
    def queued(self) -> bool:
        """Whether it has not been admitted yet."""
        return self._admission is None

    @property
    def node(self) -> str:
        """Node of the first attempt; empty until it was admitted."""
        return self._admission.node.id if self._admission else ""

    @property
    def planned(self) -> Exactness:
        """The exactness class a resume of this request would have, as far as can be said now."""
        node = self._admission.node if self._admission else None
        nodes = [node] if node else self._context.table.named(self.ask.model)
        return planned_class(self.ask, nodes[0], self._settings.prefer) if nodes else "refused"

    async def run(self, client: Client) -> None:
        """Serve the request. Raises ApiError when it cannot be completed; then nothing more was sent."""
        context, outcome = self._context, "left"
        context.streams[self.request] = self
        context.metrics.inflight.inc()
        try:
            await self._run(client)
            outcome = "completed"
        except ApiError as error:
            outcome = error.code
            raise
        finally:
            context.streams.pop(self.request, None)
            context.metrics.inflight.dec()
            context.metrics.streams.labels(outcome).inc()
            if self._admission is not None:
                context.journal.close(self._admission.record)

    def offer(self, assignment: Assignment) -> None:
        """Take an assignment from the inbox; stale ones are ignored."""
        admission = self._admission
        if admission is None:
            return
        if self.pause is not None and self._parked:
            self.pause.offer(assignment)
        elif assignment.route == "peer" and assignment.attempt == admission.record.attempt + 1:
            # The recovery moved the request before its death was noticed here: the old attempt is fenced.
            admission.early = assignment
            if self._tether is not None:
                self._tether.cut("assigned")
        elif assignment.route == "wait" and assignment.attempt >= admission.record.attempt:
            admission.early = assignment

    def abort(self, error: ApiError) -> None:
        """End the stream with an error as soon as it is between two writes."""
        self._abort = error
        if self._tether is not None:
            self._tether.cut("aborted")
        if self.pause is not None:
            self.pause.abort(error)

    async def _run(self, client: Client) -> None:
        self._admission = admission = await admit(self._context, self.ask, self.request, self.delivery.ids)
        record, node, plan = admission.record, admission.node, admission.plan
        await self._context.journal.open(record)
        while True:
            self._check_abort()
            failure = await self._attempt(client, record, node, plan)
            if failure is None:
                return
            self._check_abort()
            log.info(
                "stream.cut", request=self.request, node=node.id, epoch=node.epoch, cause=failure.cause,
                attempt=record.attempt, delivered=len(record.ids),
            )  # fmt: skip
            if len(record.ids) >= record.max_tokens:
                await client.finish("length", sse.usage(len(record.prompt_ids), len(record.ids)))
                return
            node, plan = await self._resume(client, admission, node, failure)

    async def _attempt(self, client: Client, record: Record, node: Node, plan: Plan) -> Failure | None:
        """Run one attempt to its end; None when the answer was completed."""
        order = Generation(
            plan.prompt_ids, plan.max_tokens, plan.min_tokens, self.ask.sampling, f"{self.request}.{record.attempt}"
        )
        table, engine = self._context.table, self._context.table.engine(node)
        if not table.open_to(node):
            return Failure("left", seen=False)
        self.delivery.begin(plan)
        self._sent_at, self._reused = time.monotonic(), None
        with table.tied(node) as tether:
            self._tether = tether
            seen = not tether.cause
            generator = engine.generate(order, self._settings.connect_timeout_ms / 1_000)
            timeout = self._first_token_timeout()
            try:
                while True:
                    chunks = await tether.hold(generator.__anext__, timeout)
                    tether.took()
                    if not tether.speaks and any(chunk.text or chunk.ids for chunk in chunks):
                        # Not before: a frame that only says the prompt is being computed is no first token.
                        timeout, tether.speaks = self._settings.silence_timeout_s, True
                        table.served(node)
                        self._context.blame(self._failed, node, self.request)
                    if await self._pass_on(client, record, node, chunks):
                        return None
            except Severed as error:
                if tether.cause:
                    return Failure(tether.cause if tether.cause in _VERDICTS else "verdict", seen)
                return self._broken(node, "silence", str(error))
            except EngineUnreachable as error:
                return self._broken(node, "unreachable", str(error), seen=False)
            except EngineRejected as error:
                if error.status in NOT_NOW:
                    table.suspect(node)
                    return Failure("busy", seen=False)
                if error.status < 500:
                    raise EngineRefusal(error.status, error.body) from error
                # About this request, perhaps: a try of its own, held against the node only if another one serves it.
                self._failed.append((node, str(error)))
                return Failure("failed", seen)
            except (EngineError, StopAsyncIteration) as error:
                return self._broken(node, "broken", str(error))
            except Diverged as error:
                raise ApiError(
                    502, f"the answer cannot be continued exactly on another node: {error}", code="resume_diverged"
                ) from error
            finally:
                self._tether = None
                await generator.aclose()

    async def _pass_on(self, client: Client, record: Record, node: Node, chunks: list[Chunk]) -> bool:
        """Give the client what is new in one read; True when that was the answer's end."""
        pieces, accept, with_ids = [], self.delivery.accept, self.ask.return_token_ids
        if self.pause is not None:
            self.pause.progress()
        for chunk in chunks:
            text, ids = accept(chunk)
            if text or (with_ids and ids):
                pieces.append((text, ids))
        last = chunks[-1]
        if chunks[0].cached is not None:
            self._reused = chunks[0].cached
        if self._resumed is not None and (pieces or last.finish is not None):
            await self._announce(client, node, *self._resumed)
        if pieces:
            self._last_new = time.monotonic()
            await client.deliver(pieces)
            self._context.journal.grown(record)
        if last.finish is None:
            return False
        await client.finish(last.finish, sse.usage(len(record.prompt_ids), self.delivery.generated))
        return True

    async def _resume(self, client: Client, admission: Admission, failed: Node, failure: Failure) -> tuple[Node, Plan]:
        """Pause the client until there is a node to go on with."""
        if failure.seen:
            self._tries += 1
            if self._tries > self._settings.max_retries:
                raise ApiError(
                    502, f"the request was cut {self._tries} times; no retries are left", code="retries_exhausted"
                )
        if self.delivery.started and self.planned == "refused":
            raise _refused("this kind of request cannot be resumed on this engine")
        if self.pause is None:
            self.pause = Pause(self._context, admission, self.ask, self._settings.resume_deadline_s)
        self._last_new = self._last_new or time.monotonic()
        self.pause.begin(failed, hurry=failure.cause in _HURRY)
        await client.pause()
        self._parked = True
        try:
            node = await next_node(self.pause, delivered=self.delivery.started)
        finally:
            self._parked = False
        plan = plan_for(self.ask, admission.record, node, self._settings.prefer, delivered=self.delivery.started)
        if plan.exactness == "refused":
            raise _refused(plan.reason)
        self._resumed = (plan.exactness, failure.cause, len(admission.record.ids))
        return node, plan

    async def _announce(self, client: Client, node: Node, exactness: Exactness, cause: str, at: int) -> None:
        self._resumed = None
        gap = time.monotonic() - self._last_new
        ours = max(self._sent_at - self._last_new, 0.0)
        metrics = self._context.metrics
        metrics.resumes.labels(exactness, cause).inc()
        metrics.gaps.observe(gap)
        metrics.waits.observe(ours)
        log.info(
            "stream.resumed", request=self.request, node=node.id, epoch=node.epoch, exactness=exactness, at=at,
            reused=self._reused, gap_ms=round(gap * 1_000), wait_ms=round(ours * 1_000),
        )  # fmt: skip
        reused = "" if self._reused is None else f" reused={self._reused}"
        await client.resumed(f"resumed node={node.id} class={exactness} at={at}{reused} gap_ms={round(gap * 1_000)}")

    def _broken(self, node: Node, cause: str, evidence: str, *, seen: bool = True) -> Failure:
        if self._context.table.leaves(node):
            return Failure("left", seen=False)
        self._context.table.suspect(node)
        self._context.journal.evidence(node.id, node.epoch, self.request, f"{cause}: {evidence[:200]}")
        return Failure(cause, seen)

    def _first_token_timeout(self) -> float:
        timeout = self._settings.first_token_timeout_s
        return timeout if self.pause is None else min(timeout, max(self.pause.left, 0.05))

    def _check_abort(self) -> None:
        if self._abort is not None:
            raise self._abort


def _refused(reason: str) -> ApiError:
    return ApiError(502, f"the answer was cut and cannot be continued: {reason}", code="resume_refused")
