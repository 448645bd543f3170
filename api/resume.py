"""Where a cut request goes on: the assignment that comes in by the inbox, or the gateway's own after its patience.

Either way the attempt is won by a compare-and-set in the journal, in memory when Redis is away (design, section 3).
"""

import asyncio
import time
from typing import Literal

import structlog

from api.admission import Admission
from api.context import Context
from api.errors import ApiError, unavailable
from api.journaling import Record
from api.requests import Ask
from recovery import journal, policy, requeue
from recovery.errors import StoreUnavailable
from recovery.journal import Assignment
from recovery.registry import Node
from recovery.requeue import Exactness, Plan
from recovery.store import available, inbox_key

log = structlog.get_logger()

_BLOCK_MS = 500
_REFRESH_S = 0.5


class Pause:
    """A request's standing still: how long it has been, where it must not go, what it was told.

    One per request, so that all its pauses share one deadline.
    """

    def __init__(self, context: Context, admission: Admission, ask: Ask, budget_s: float) -> None:
        self.context = context
        self.record: Record = admission.record
        self.ask = ask
        self.wake = asyncio.Event()
        self.told: Assignment | None = None
        self.failed: set[tuple[str, int]] = set()
        self.patience_until = 0.0
        self.error: ApiError | None = None
        self._admission = admission
        self._budget = budget_s
        self._since: float | None = None

    @property
    def left(self) -> float:
        """Seconds of pause this request may still have."""
        return self._budget - (time.monotonic() - self._since if self._since is not None else 0.0)

    def begin(self, failed: Node, *, hurry: bool) -> None:
        """Stand still from now on because `failed` did; ``hurry``: nobody's assignment is waited for."""
        now = time.monotonic()
        if self._since is None:
            self._since = now
        self.failed.add((failed.id, failed.epoch))
        patience = self.context.settings.request.resume_patience_ms / 1_000
        self.patience_until = now + (0.0 if hurry else patience)
        self.told = None
        if self._admission.early is not None:
            self.offer(self._admission.early)
            self._admission.early = None

    def progress(self) -> None:
        """An engine works for the request again."""
        if self._since is not None:
            self._budget -= time.monotonic() - self._since
            self._since = None

    def offer(self, assignment: Assignment) -> None:
        """Take an assignment if it is for the attempt that comes next."""
        next_attempt = self.record.attempt + 1
        if assignment.attempt == next_attempt or (
            assignment.route == "wait" and assignment.attempt == self.record.attempt and self._since is not None
        ):
            self.told = assignment
            self.wake.set()

    def abort(self, error: ApiError) -> None:
        """End the pause with an error."""
        self.error = error
        self.wake.set()


async def next_node(pause: Pause, *, delivered: bool) -> Node:
    """Wait for the node of the next attempt. Raises ApiError (503) at the pause's deadline."""
    waiting_for: Assignment | None = None
    there: set[tuple[str, int]] = set()
    with pause.context.table.parked(pause.wake):
        while True:
            pause.wake.clear()
            if pause.error is not None:
                raise pause.error
            if pause.left <= 0:
                raise unavailable("no node could continue the answer in time", "resume_deadline_exceeded")
            told, pause.told = pause.told, None
            if told is not None and told.route == "wait":
                waiting_for, there = told, _able(pause)
                pause.patience_until = time.monotonic() + pause.left / 2
            elif told is not None:
                node = await _obey(pause, told, delivered=delivered)
                if node is not None:
                    return node
                pause.patience_until = time.monotonic()
            if waiting_for is not None and (_is_back(pause, waiting_for.node) or _able(pause) - there):
                # The second wave should come now, or a node is here that was not when the order was given:
                # the usual patience is enough.
                waiting_for = None
                patience = pause.context.settings.request.resume_patience_ms / 1_000
                pause.patience_until = min(pause.patience_until, time.monotonic() + patience)
            impatient = pause.patience_until - time.monotonic()
            if impatient <= 0:
                choice = _choose(pause, delivered=delivered)
                node = await _claim(pause, choice, delivered=delivered) if choice is not None else None
                if node is not None:
                    return node
            await _rest(pause, min(pause.left, impatient if impatient > 0 else 1.0))


def plan_for(ask: Ask, record: Record, node: Node, prefer: Literal["exact", "speed"], *, delivered: bool) -> Plan:
    """Return the order for a cut request's next attempt on ``node``."""
    exactness = _class_on(ask, record.identity, node, prefer)
    if exactness == "refused" and not delivered:
        exactness = "replayed"  # the client has nothing yet: a fresh run contradicts nothing
    return requeue.plan(
        exactness, record.prompt_ids, record.ids, max_tokens=record.max_tokens, min_tokens=ask.min_tokens
    )


def planned_class(ask: Ask, node: Node, prefer: Literal["exact", "speed"]) -> Exactness:
    """Return the class of a resume between nodes like ``node``."""
    return _class_on(ask, node.identity, node, prefer)


async def read_inbox(context: Context) -> None:
    """Hand the assignments of this gateway's inbox to their streams, until cancelled."""
    key, after = inbox_key(context.id), "$"
    while True:
        try:
            async with context.store.reader() as reader:
                if after == "$":
                    with available():
                        newest = await context.store.redis.xrevrange(key, count=1)
                    after = str(newest[0][0]) if newest else "0-0"
                while True:
                    async with asyncio.timeout(_BLOCK_MS / 1_000 + 2.0):
                        with available():
                            reply = await reader.xread({key: after}, block=_BLOCK_MS, count=500)
                    for _name, entries in reply or []:
                        for entry_id, fields in entries:
                            after = entry_id
                            _hand_over(context, fields)
        except (StoreUnavailable, TimeoutError):
            await asyncio.sleep(0.2)


def _hand_over(context: Context, fields: dict[str, str]) -> None:
    try:
        assignment = journal.parse_assignment(fields)
    except (KeyError, ValueError):
        log.exception("inbox.unreadable")
        return
    stream = context.streams.get(assignment.request)
    if stream is not None:
        stream.offer(assignment)


def _choose(pause: Pause, *, delivered: bool) -> Node | None:
    """Choose a peer by the policy all share; a node that failed this request only when nothing else is left."""
    settings = pause.context.settings
    record = pause.record
    able = [node for node in pause.context.table.usable(record.model) if _can(pause, node, delivered=delivered)]
    fresh = [node for node in able if (node.id, node.epoch) not in pause.failed]
    for group in (fresh, able):
        route = policy.route(
            len(record.prompt_ids) + len(record.ids),
            record.model,
            record.identity,
            group,
            dead="",
            token_ms=1.0,  # peers only: nothing is weighed against it
            restart_left_ms=None,
            load=pause.context.table.inflight(),
            min_free=settings.routing.min_free,
        )
        if route.node is not None:
            return route.node
    return None


async def _claim(pause: Pause, node: Node, *, delivered: bool) -> Node | None:
    """Win the next attempt for ``node``, or obey whoever was first."""
    record, writer = pause.record, pause.context.journal
    patience = pause.context.settings.request.resume_patience_ms / 1_000
    standing = await writer.assign(record, node.id, node.epoch, patience)
    if standing is None or standing.attempt <= record.attempt:  # Redis is away, or behind
        writer.moved(record, node.id, node.epoch, record.attempt + 1, in_store=False)
        return node
    if (standing.node, standing.epoch) != (node.id, node.epoch):
        return await _obey(pause, standing, delivered=delivered)
    writer.moved(record, node.id, node.epoch, standing.attempt, in_store=True)
    return node


async def _obey(pause: Pause, assignment: Assignment, *, delivered: bool) -> Node | None:
    """Take an assignment over; None when its node cannot be used, so that the attempt after it is competed for."""
    table = pause.context.table
    node = table.nodes.get(assignment.node)
    if node is None or node.epoch < assignment.epoch or not policy.takes_requests(node):
        # The order may have come by a faster way than the news it follows from.
        try:
            async with asyncio.timeout(_REFRESH_S):
                await table.refresh()
        except (StoreUnavailable, TimeoutError):
            log.debug("resume.refresh_failed")
        node = table.nodes.get(assignment.node)
    pause.context.journal.moved(pause.record, assignment.node, assignment.epoch, assignment.attempt, in_store=True)
    usable = (
        node is not None
        and node.epoch == assignment.epoch
        and bool(node.engine_url)
        and (node.id, node.epoch) not in pause.failed
        and _can(pause, node, delivered=delivered)
    )
    return node if usable else None


def _can(pause: Pause, node: Node, *, delivered: bool) -> bool:
    record = pause.record
    if node.context and node.context < len(record.prompt_ids) + record.max_tokens:
        return False
    prefer = pause.context.settings.request.prefer
    return not delivered or _class_on(pause.ask, record.identity, node, prefer) != "refused"


def _class_on(ask: Ask, identity: str, node: Node, prefer: Literal["exact", "speed"]) -> Exactness:
    return requeue.classify(
        ask.sampling,
        token_ids=True,
        invariant=node.invariant,
        deterministic_seed=node.deterministic_seed,
        same_identity=node.identity == identity,
        prefer=prefer,
    )


def _able(pause: Pause) -> set[tuple[str, int]]:
    """Return the (node, epoch) that could take this request now and have not failed it."""
    model = pause.record.model
    able = policy.eligible(pause.context.table.usable(model), model, 0.0)
    return {(node.id, node.epoch) for node in able} - pause.failed


def _is_back(pause: Pause, name: str) -> bool:
    node = pause.context.table.nodes.get(name)
    return (
        node is not None
        and (node.id, node.epoch) not in pause.failed
        and bool(policy.eligible([node], pause.record.model, 0.0))
    )


async def _rest(pause: Pause, timeout: float) -> None:
    try:
        async with asyncio.timeout(timeout):
            await pause.wake.wait()
    except TimeoutError:
        return
