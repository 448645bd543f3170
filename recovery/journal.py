"""The journal: what each request is, where it runs and which tokens its client has (design, section 4).

It has no log and no prompt text: ids only, with a time to live.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import orjson

from recovery.store import Store, available, inbox_key, node_key, request_key

_INBOX_MAXLEN = 10_000


@dataclass(frozen=True, slots=True)
class Entry:
    """One request as the journal knows it."""

    request: str
    gateway: str
    attempt: int
    """Number of the current attempt, from 0."""
    node: str
    epoch: int
    prompt_tokens: int
    max_tokens: int
    delivered: int
    """Watermark: tokens the client has, as of the last journal write."""
    identity: str
    """Model identity it must resume on to stay exact."""
    model: str


@dataclass(frozen=True, slots=True)
class Assignment:
    """Where a request's next attempt runs, or that it must wait for its node."""

    request: str
    attempt: int
    route: Literal["peer", "wait"]
    node: str
    epoch: int
    job: str = ""
    by: str = ""


def pack(ids: Sequence[int]) -> bytes:
    """Pack token ids as little-endian uint32."""
    return struct.pack(f"<{len(ids)}I", *ids)


def unpack(data: bytes) -> list[int]:
    """Inverse of `pack`."""
    return list(struct.unpack(f"<{len(data) // 4}I", data))


async def open_entry(
    store: Store, entry: Entry, prompt_ids: Sequence[int], sampling: dict[str, Any], ttl_s: int
) -> None:
    """Write a request before its first attempt is sent. Raises StoreUnavailable."""
    key = request_key(entry.request)
    with available():
        async with store.raw.pipeline(transaction=False) as pipe:
            pipe.hset(
                key,
                mapping={
                    "gateway": entry.gateway,
                    "attempt": entry.attempt,
                    "node": entry.node,
                    "epoch": entry.epoch,
                    "prompt_tokens": entry.prompt_tokens,
                    "max_tokens": entry.max_tokens,
                    "delivered": entry.delivered,
                    "identity": entry.identity,
                    "model": entry.model,
                    "prompt": pack(prompt_ids),
                    "sampling": orjson.dumps(sampling),
                },
            )
            pipe.expire(key, ttl_s)
            pipe.sadd(node_key(entry.node, "requests"), entry.request)
            await pipe.execute()


async def record(store: Store, request: str, offset: int, ids: Sequence[int], ttl_s: int) -> None:
    """Write ids delivered from position `offset` on; repeating it is harmless. Raises StoreUnavailable.

    Keeps the whole entry alive for another `ttl_s`; does nothing for a request that was closed.
    """
    keys = [request_key(request), request_key(request, "tokens")]
    await store.run("journal_record", keys, [offset, pack(ids), ttl_s])


async def close_entry(store: Store, request: str, nodes: Sequence[str]) -> None:
    """Forget a request that has ended; `nodes` are all it ran on. Raises StoreUnavailable."""
    with available():
        async with store.raw.pipeline(transaction=False) as pipe:
            pipe.delete(request_key(request), request_key(request, "tokens"))
            for node in set(nodes):
                pipe.srem(node_key(node, "requests"), request)
            await pipe.execute()


async def entries_on(store: Store, node: str, epoch: int) -> list[Entry]:
    """Return the requests whose current attempt runs on (node, epoch); drops what is gone or has moved."""
    with available():
        requests = sorted(await store.redis.smembers(node_key(node, "requests")))
        async with store.raw.pipeline(transaction=False) as pipe:
            for request in requests:
                pipe.hmget(request_key(request), *_COLUMNS)
            rows = await pipe.execute() if requests else []
    found, stray = [], []
    for request, row in zip(requests, rows, strict=True):
        if row[1] is None or row[2].decode() != node:
            stray.append(request)
        elif int(row[3]) == epoch:
            found.append(_entry(request, row))
    if stray:
        with available():
            await store.redis.srem(node_key(node, "requests"), *stray)
    return found


async def read_tokens(store: Store, request: str) -> tuple[list[int], list[int]]:
    """Return a request's (prompt ids, delivered ids)."""
    with available():
        prompt = await store.raw.hget(request_key(request), "prompt")
        tokens = await store.raw.get(request_key(request, "tokens"))
    return unpack(prompt or b""), unpack(tokens or b"")


async def assign(
    store: Store, request: str, attempt: int, node: str, epoch: int, by: str
) -> tuple[Literal["assigned", "taken", "gone"], Assignment | None]:
    """Give (request, attempt) its next attempt, once. Raises StoreUnavailable.

    ``taken`` returns what stands there already: whoever lost must obey it.
    """
    reply = await store.run("assign", [request_key(request)], [attempt, node, epoch, by])
    verdict = reply[0]
    if verdict == "gone":
        return "gone", None
    standing = Assignment(request, int(reply[1]), "peer", reply[2], int(reply[3]), by=by)
    with available():
        await store.redis.sadd(node_key(standing.node, "requests"), request)
    return verdict, standing


async def assign_many(
    store: Store, moves: Sequence[tuple[str, int, str, int]], by: str
) -> list[tuple[Literal["assigned", "taken", "gone"], Assignment | None]]:
    """Like `assign` for many (request, attempt, node, epoch) in two round trips; results in order."""
    replies = await store.run_many(
        "assign", [([request_key(request)], [attempt, node, epoch, by]) for request, attempt, node, epoch in moves]
    )
    results: list[tuple[Literal["assigned", "taken", "gone"], Assignment | None]] = []
    for (request, *_), reply in zip(moves, replies, strict=True):
        standing = (
            None if reply[0] == "gone" else Assignment(request, int(reply[1]), "peer", reply[2], int(reply[3]), by=by)
        )
        results.append((reply[0], standing))
    placed = [standing for _, standing in results if standing is not None]
    if placed:
        with available():
            async with store.redis.pipeline(transaction=False) as pipe:
                for standing in placed:
                    pipe.sadd(node_key(standing.node, "requests"), standing.request)
                await pipe.execute()
    return results


async def push(store: Store, gateway: str, assignment: Assignment) -> None:
    """Put an assignment into its gateway's inbox. Raises StoreUnavailable."""
    await push_many(store, [(gateway, assignment)])


async def push_many(store: Store, orders: Sequence[tuple[str, Assignment]]) -> None:
    """Put assignments into their gateways' inboxes in one round trip. Raises StoreUnavailable."""
    if not orders:
        return
    with available():
        async with store.redis.pipeline(transaction=False) as pipe:
            for gateway, assignment in orders:
                pipe.xadd(
                    inbox_key(gateway),
                    {
                        "request": assignment.request,
                        "attempt": assignment.attempt,
                        "route": assignment.route,
                        "node": assignment.node,
                        "epoch": assignment.epoch,
                        "job": assignment.job,
                        "by": assignment.by,
                    },
                    maxlen=_INBOX_MAXLEN,
                    approximate=True,
                )
            await pipe.execute()


def parse_assignment(fields: dict[str, str]) -> Assignment:
    """Read an inbox entry."""
    return Assignment(
        request=fields["request"],
        attempt=int(fields["attempt"]),
        route="wait" if fields["route"] == "wait" else "peer",
        node=fields["node"],
        epoch=int(fields["epoch"]),
        job=fields.get("job", ""),
        by=fields.get("by", ""),
    )


_COLUMNS = (
    "gateway", "attempt", "node", "epoch", "prompt_tokens", "max_tokens", "delivered", "identity", "model",
)  # fmt: skip


def _entry(request: str, row: Sequence[bytes]) -> Entry:
    gateway, attempt, node, epoch, prompt_tokens, max_tokens, delivered, identity, model = row
    return Entry(
        request=request,
        gateway=gateway.decode(),
        attempt=int(attempt),
        node=node.decode(),
        epoch=int(epoch),
        prompt_tokens=int(prompt_tokens),
        max_tokens=int(max_tokens),
        delivered=int(delivered),
        identity=identity.decode(),
        model=model.decode(),
    )
