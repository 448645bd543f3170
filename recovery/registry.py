"""The registry: every node's address, identity, state and routing figures, as Redis knows them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from recovery import events
from recovery.errors import StaleEpoch, UnknownNode
from recovery.store import NODES, Store, available, node_key


class NodeState(StrEnum):
    """Where a node stands (design, section 5)."""

    STARTING = "STARTING"
    ALIVE = "ALIVE"
    SUSPECT = "SUSPECT"
    DEAD = "DEAD"
    RECOVERING = "RECOVERING"
    WARMING = "WARMING"
    PROBATION = "PROBATION"
    DRAINING = "DRAINING"
    QUARANTINED = "QUARANTINED"
    NEEDS_OPERATOR = "NEEDS_OPERATOR"
    STOPPED = "STOPPED"
    """Its agent stopped in good order."""


SERVING = frozenset({NodeState.ALIVE, NodeState.SUSPECT})
"""States whose running streams go on and that may take new ones."""


@dataclass(frozen=True, slots=True)
class Node:
    """One node as registered."""

    id: str
    epoch: int = 0
    state: NodeState = NodeState.STARTING
    weight: float = 0.0
    """Share of normal traffic it may take, 0..1."""
    score: float = 0.0
    """Routing score, lowest wins (requirements B4)."""
    free_ratio: float = 1.0
    rtt_us: float = 0.0
    """Round trip to its agent, the last one."""
    ewma_us: float = 0.0
    """Round trip, smoothed."""
    baseline_us: float = 0.0
    """What is usual for this link, learned in good times; 0: not known."""
    hold_s: float = 0.0
    """How long the last probation had to hold; 0: the setting's."""
    why: str = ""
    """What led to its state."""
    gpu: str = ""
    """State of its GPUs as the agent reads it, empty without any."""
    running: int = 0
    waiting: int = 0
    agent: str = ""
    """host:port of its agent."""
    engine_url: str = ""
    kind: str = ""
    model: str = ""
    identity: str = ""
    context: int = 0
    slots: int = 0
    invariant: bool = False
    deterministic_seed: bool = False
    host: str = ""
    cause: str = ""
    job: str = ""
    """Job that recovers or last recovered it."""
    detail: str = ""
    restart_ms: int = 0
    """Measured time of its last engine start, for the policy's estimates."""
    extra: dict[str, str] = field(default_factory=dict)


_INTS = frozenset({"epoch", "running", "waiting", "context", "slots", "restart_ms"})
_FLOATS = frozenset({"weight", "score", "free_ratio", "rtt_us", "ewma_us", "baseline_us", "hold_s"})
_BOOLS = frozenset({"invariant", "deterministic_seed"})
_FIELDS = frozenset(Node.__dataclass_fields__) - {"id", "extra"}


def parse(node: str, values: Mapping[str, str]) -> Node:
    """Build a Node from its hash."""
    known: dict[str, Any] = {}
    extra: dict[str, str] = {}
    for name, value in values.items():
        if name not in _FIELDS:
            extra[name] = value
        elif name in _INTS:
            known[name] = int(float(value))
        elif name in _FLOATS:
            known[name] = float(value)
        elif name in _BOOLS:
            known[name] = value == "1"
        elif name == "state":
            known[name] = NodeState(value)
        else:
            known[name] = value
    return Node(id=node, extra=extra, **known)


async def register(store: Store, node: str, epoch: int, fields: Mapping[str, str | int | float | bool]) -> None:
    """Write what an agent knows of its node and list the node. Raises StaleEpoch, StoreUnavailable."""
    await write(store, node, epoch, fields)
    with available():
        await store.redis.sadd(NODES, node)
    await events.publish(store, events.Kind.NODE_REGISTERED, {"node": node, "epoch": epoch})


async def write(
    store: Store,
    node: str,
    epoch: int,
    fields: Mapping[str, str | int | float | bool],
    only_in: Sequence[NodeState] = (),
) -> bool:
    """Write fields under the node's epoch, if its state is one of `only_in` (empty: any).

    Returns False when the state did not match. Raises StaleEpoch, StoreUnavailable.
    """
    keys, args = _write_call(node, epoch, fields, only_in)
    verdict, current = await store.run("node_write", keys, args)
    if verdict == "stale":
        raise StaleEpoch(node, epoch, int(current))
    return bool(verdict == "ok")


async def write_figures(
    store: Store, figures: Iterable[tuple[str, int, NodeState, Mapping[str, str | int | float]]]
) -> None:
    """Write fields of several nodes in one round trip, each if its epoch and state are still these."""
    calls = [_write_call(node, epoch, fields, [state]) for node, epoch, state, fields in figures]
    await store.run_many("node_write", calls)


def _write_call(
    node: str, epoch: int, fields: Mapping[str, str | int | float | bool], only_in: Sequence[NodeState]
) -> tuple[list[str], list[str | int | float]]:
    args: list[str | int | float] = [epoch, ",".join(only_in)]
    for name, value in fields.items():
        args += [name, int(value) if isinstance(value, bool) else value]
    return [node_key(node, "epoch"), node_key(node)], args


async def set_state(
    store: Store,
    node: str,
    epoch: int,
    state: NodeState,
    *,
    weight: float = 0.0,
    only_in: Sequence[NodeState] = (),
    why: str = "",
    by: str = "",
    **fields: str | int | float,
) -> bool:
    """Change a node's state and tell everyone: `why` with numbers, and `by` whom. Same errors and result as `write`."""
    values = {"state": state.value, "weight": weight, "why": why, **fields}
    changed = await write(store, node, epoch, values, only_in)
    if changed:
        event: dict[str, str | int | float] = {
            "node": node,
            "epoch": epoch,
            "state": state.value,
            "weight": weight,
            "why": why,
            "by": by,
        }
        await events.publish(store, events.Kind.NODE_STATE, event)
    return changed


async def get(store: Store, node: str) -> Node:
    """Return one node. Raises UnknownNode, StoreUnavailable."""
    with available():
        values = await store.redis.hgetall(node_key(node))
    if not values:
        raise UnknownNode(f"no node {node!r} is registered")
    return parse(node, values)


async def all_nodes(store: Store, only: Sequence[str] = ()) -> list[Node]:
    """Return every registered node, by id, in one round trip; `only` these fields, where there are many nodes."""
    with available():
        names = sorted(await store.redis.smembers(NODES))
        async with store.redis.pipeline(transaction=False) as pipe:
            for name in names:
                if only:
                    pipe.hmget(node_key(name), only)
                else:
                    pipe.hgetall(node_key(name))
            replies = await pipe.execute() if names else []
    if only:
        replies = [{k: v for k, v in zip(only, values, strict=True) if v is not None} for values in replies]
    return [parse(name, values) for name, values in zip(names, replies, strict=True) if values]
