"""The events stream: what happened to nodes, requests and jobs, for whoever must act on it (requirements A1)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from recovery.store import EVENTS, HEARTBEATS, TOKENS, Store, available

_MAXLEN = 10_000
_MAXLEN_TOKENS = 1_000
Fields = Mapping[str, str | int | float]


class Kind(StrEnum):
    """What an event says."""

    NODE_REGISTERED = "node.registered"
    NODE_STATE = "node.state"
    """Fields node, epoch, state, weight, why, by."""
    NODE_DEAD = "node.dead"
    """Fields node, epoch, cause, evidence, sentinel, detected_ms, took_ms (last sign of life to verdict)."""
    NODE_VOTE = "node.vote"
    """A sentinel alone holds a node for dead, unproven: node, epoch, cause, evidence, sentinel, took_ms."""
    LEASE_EXPIRED = "lease.expired"
    UPSTREAM_BROKEN = "upstream.broken"
    """A gateway's evidence: node, epoch, evidence, gateway, request."""
    UPSTREAM_STALLED = "upstream.stalled"
    """A gateway's streams on a node have stood still for unusually long: node, epoch, evidence, gateway."""
    JOB_STATE = "job.state"
    """Fields job, node, epoch, state."""


@dataclass(frozen=True, slots=True)
class Event:
    """One entry of the stream."""

    id: str
    kind: str
    fields: dict[str, str]

    @property
    def node(self) -> str:
        """The node it is about, or an empty string."""
        return self.fields.get("node", "")

    @property
    def epoch(self) -> int:
        """The epoch it is about, or 0."""
        return int(self.fields.get("epoch", 0))


async def publish(store: Store, kind: Kind, fields: Fields) -> str:
    """Append an event and return its id. Raises StoreUnavailable."""
    with available():
        entry: dict[Any, Any] = {"kind": kind.value, **fields}
        return str(await store.redis.xadd(EVENTS, entry, maxlen=_MAXLEN, approximate=True))


async def publish_heartbeats(store: Store, beats: Sequence[Fields]) -> None:
    """Append aggregated heartbeats, of several nodes at once (one per node and second, not each ping)."""
    with available():
        async with store.redis.pipeline(transaction=False) as pipe:
            for fields in beats:
                entry: dict[Any, Any] = dict(fields)
                pipe.xadd(HEARTBEATS, entry, maxlen=_MAXLEN, approximate=True)
            await pipe.execute()


async def publish_tokens(store: Store, gateway: str, ages_ms: Mapping[str, int]) -> None:
    """Say from which engines a gateway has received tokens since it last said so, and how long ago.

    `ages_ms` maps `node@epoch` to the ms since the last token; sent a few times a second at most, all nodes together.
    """
    with available():
        entry: dict[Any, Any] = {"gateway": gateway, **ages_ms}
        await store.redis.xadd(TOKENS, entry, maxlen=_MAXLEN_TOKENS, approximate=True)


async def last_id(store: Store) -> str:
    """Return the id of the newest event, to read on from."""
    with available():
        newest = await store.redis.xrevrange(EVENTS, count=1)
    return str(newest[0][0]) if newest else "0-0"


async def history(store: Store, after: str = "-", count: int = 1_000) -> list[Event]:
    """Return the events that are still kept, oldest first."""
    with available():
        return parse(await store.redis.xrange(EVENTS, min=after, count=count))


def parse(entries: Any) -> list[Event]:
    """Turn the entries of an XREAD/XREADGROUP/XRANGE reply for one stream into events."""
    events = []
    for entry_id, fields in entries or []:
        if fields is None:  # trimmed while pending
            continue
        values = dict(fields)
        events.append(Event(entry_id, values.pop("kind", ""), values))
    return events


async def read(reader: Any, after: str, block_ms: int = 500, count: int = 500) -> list[Event]:
    """Return the events after an id, waiting `block_ms` for the first. `reader` comes from Store.reader()."""
    with available():
        reply = await reader.xread({EVENTS: after}, block=block_ms, count=count)
    return [event for _name, entries in reply or [] for event in parse(entries)]


async def read_with_tokens(
    reader: Any, after: str, tokens_after: str, block_ms: int = 500, count: int = 500
) -> tuple[list[Event], list[Event]]:
    """Like `read`, and what gateways said of tokens beside it (`publish_tokens`), in one wait."""
    with available():
        reply = await reader.xread({EVENTS: after, TOKENS: tokens_after}, block=block_ms, count=count)
    parsed = {name: parse(entries) for name, entries in reply or []}
    return parsed.get(EVENTS, []), parsed.get(TOKENS, [])
