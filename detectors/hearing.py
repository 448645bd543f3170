"""What a sentinel hears on Redis' streams: jobs and operators, gateways, other sentinels (requirements A1)."""

import asyncio
import time
from collections.abc import Callable, Mapping

from detectors.evidence import TokensSeen, UpstreamBroken, Vote
from detectors.fleet import Fleet
from detectors.watch import Watch
from recovery import events, registry
from recovery.errors import StoreUnavailable, UnknownNode
from recovery.events import Event, Kind
from recovery.registry import Node

_RETRY_S = 0.3
_DEADLINE_S = 3.0
_UPSTREAM = frozenset({Kind.UPSTREAM_BROKEN, Kind.UPSTREAM_STALLED})


class Hearing:
    """Reads on from the moment it starts, and tells the watches what is new."""

    def __init__(self, fleet: Fleet, watches: Mapping[str, Watch], observe: Callable[[Node], None]) -> None:
        self._fleet = fleet
        self._watches = watches
        self._observe = observe

    async def run(self) -> None:
        """Read until cancelled, on a new connection after every failure."""
        store = self._fleet.store
        after, tokens_after = "", "$"
        await self._fleet.members.known()
        while True:
            try:
                after = after or await events.last_id(store)
                async with store.reader() as reader:
                    while True:
                        # A stopped Redis closes nothing, and this client has no deadline of its own.
                        async with asyncio.timeout(_DEADLINE_S):
                            news, tokens = await events.read_with_tokens(reader, after, tokens_after)
                        for event in tokens:
                            tokens_after = event.id
                            self._tokens(event)
                        for event in news:
                            after = event.id
                            await self._hear(event)
            except (StoreUnavailable, TimeoutError):
                await asyncio.sleep(_RETRY_S)

    async def _hear(self, event: Event) -> None:
        watch = self._watches.get(event.node)
        if event.kind == Kind.NODE_REGISTERED or (event.kind == Kind.NODE_STATE and watch is not None):
            judge = watch.judge if watch else None
            if judge and (judge.epoch, judge.state) == (event.epoch, event.fields.get("state")):
                return  # our own
            try:
                self._observe(await registry.get(self._fleet.store, event.node))
            except UnknownNode:
                return
        elif watch is None or watch.judge.epoch != event.epoch:
            return
        elif event.kind in _UPSTREAM:
            watch.take(UpstreamBroken(event.fields.get("evidence", "")))
        elif event.kind == Kind.NODE_VOTE:
            self._vote(watch, event)

    def _vote(self, watch: Watch, event: Event) -> None:
        fields, age_s = event.fields, self._age_s(event)
        sentinel = fields.get("sentinel", "")
        if age_s is None or sentinel in ("", self._fleet.sentinel):
            return
        vote = Vote(fields.get("cause", ""), fields.get("evidence", ""), float(fields.get("took_ms", 0)) / 1e3)
        watch.voting.hear(sentinel, vote, time.monotonic() - age_s)

    def _tokens(self, event: Event) -> None:
        age_s = self._age_s(event)
        if age_s is None:
            return
        for name, age_ms in event.fields.items():
            node, _, epoch = name.rpartition("@")
            watch = self._watches.get(node)
            if watch is not None and epoch == str(watch.judge.epoch):
                watch.take(TokensSeen(float(age_ms) / 1e3 + age_s))

    def _age_s(self, event: Event) -> float | None:
        """How long ago it was said: what was read late, after a sleep of our own, is not fresh for that."""
        return self._fleet.members.since(int(event.id.partition("-")[0]), time.monotonic())
