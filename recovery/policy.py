"""Where a request goes: which node takes a new one, and what a paused one should do (requirements B4, D5).

Pure: figures in, decision out.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from recovery.registry import SERVING, Node, NodeState

PREFILL_ESTIMATE_MS = {"llamacpp": 15.0, "vllm": 0.3}
_PREFILL_UNKNOWN_MS = 5.0
_RESTART_UNKNOWN_MS = 10_000.0
Policy = Literal["two_choices", "fastest"]
MEMORY_WEIGHT = 0.3
"""Weight of used memory in the score (requirements B4), the default of `routing.memory_weight`."""


def prefill_ms_per_token(node: Node) -> float:
    """Estimate what one prompt token costs on an engine of this node's kind; not measured per node yet."""
    return PREFILL_ESTIMATE_MS.get(node.kind, _PREFILL_UNKNOWN_MS)


def restart_ms(node: Node) -> float:
    """Return how long the node's engine takes to start: its last start, or a guess for one never measured."""
    return float(node.restart_ms or _RESTART_UNKNOWN_MS)


def score(rtt_ewma_ms: float, free_ratio: float, rtt_weight: float, memory_weight: float) -> float:
    """Return a node's routing score, lowest wins (requirements B4)."""
    return rtt_weight * rtt_ewma_ms + memory_weight * 100.0 * (1.0 - free_ratio)


def takes_requests(node: Node) -> bool:
    """Whether a node in this state may be sent anything: not while it starts, warms up, leaves, or is dead."""
    return node.state in SERVING or node.state is NodeState.PROBATION


def eligible(nodes: Iterable[Node], model: str, min_free: float) -> list[Node]:
    """Return the nodes that may take a request for `model`.

    Nodes on probation take their weight's share; at weight 0 they serve only while nobody else can:
    better half-proven than none.
    """
    serving = [node for node in nodes if node.model == model and node.engine_url]
    weighted = [n for n in serving if n.weight > 0 and takes_requests(n)]
    return (
        [n for n in weighted if n.free_ratio >= min_free]
        or weighted
        or [n for n in serving if n.state is NodeState.PROBATION]
    )


def choose(
    nodes: Iterable[Node],
    model: str,
    *,
    inflight: Mapping[str, int],
    draws: tuple[float, float, float],
    min_free: float,
    memory_weight: float = MEMORY_WEIGHT,
    policy: Policy = "two_choices",
    avoid: frozenset[str] = frozenset(),
) -> Node | None:
    """Choose a node for a new request, or None when there is no node at all.

    `inflight` is this gateway's running requests per node: between two heartbeats it is the freshest
    load figure there is. `draws` are three random numbers in [0, 1): the first decides whether nodes with a
    weight below 1 take part, the others draw the two of `two_choices`. Several gateways that read the same
    figures would all send to the one fastest node until the next heartbeat; two drawn at random do not.
    `avoid` (a request's failed nodes) gives way when nothing else is left.
    """
    able = eligible(nodes, model, min_free)
    wanted = [node for node in able if node.id not in avoid] or able
    taking = [node for node in wanted if node.weight >= 1.0 or draws[0] < node.weight] or wanted
    if policy == "two_choices":
        taking = _two_of(taking, *draws[1:])
    else:
        taking.sort(key=lambda node: node.id)

    def cost(node: Node) -> tuple[int, float, float]:
        load = inflight.get(node.id, 0)
        return _pressure(node, load), _expected(node, load, memory_weight), _depth(node, load)

    return min(taking, key=cost, default=None)


def _two_of(nodes: Sequence[Node], first: float, second: float) -> list[Node]:
    """Return two different nodes, in random order so that even equals are chosen by chance; all when there are less."""
    if len(nodes) < 2:
        return list(nodes)
    one, other = int(first * len(nodes)), int(second * (len(nodes) - 1))
    return [nodes[one], nodes[other + (other >= one)]]


def _expected(node: Node, inflight: int, memory_weight: float) -> float:
    """Return the score the node will have once a heartbeat shows what was sent to it since: each request fills a slot.

    Without it, everything that arrives between two heartbeats would go to one node.
    """
    filled = min(inflight / max(node.slots, 1), 1.0)
    return node.score + memory_weight * 100.0 * max(filled - (1.0 - node.free_ratio), 0.0)


def _pressure(node: Node, inflight: int) -> int:
    """Return how many whole batches the node's queue is deep: only then does load outweigh the score."""
    return int(_depth(node, inflight))


def _depth(node: Node, inflight: int) -> float:
    """Return how deep the node's queue is, in batches."""
    return max(inflight, node.running + node.waiting) / max(node.slots, 1)


@dataclass(frozen=True, slots=True)
class Route:
    """What a paused request should do."""

    kind: Literal["peer", "wait", "none"]
    node: Node | None = None
    estimate_ms: float = 0.0


def route(
    tokens: int,
    model: str,
    identity: str,
    nodes: Iterable[Node],
    dead: str,
    *,
    token_ms: float,
    restart_left_ms: float | None,
    load: Mapping[str, int],
    min_free: float = 0.0,
) -> Route:
    """Choose between a healthy peer now and waiting for the node itself.

    `tokens` is what must be computed again at `token_ms` each; `load` counts the requests already sent to
    each node in this wave.
    """
    peers = [n for n in eligible(nodes, model, min_free) if n.id != dead]
    same = [n for n in peers if n.identity == identity] or peers
    best = min(same, key=lambda n: (_pressure(n, load.get(n.id, 0)), load.get(n.id, 0), n.score), default=None)
    prefill = tokens * token_ms
    peer_ms = None if best is None else prefill * (1 + _pressure(best, load.get(best.id, 0)))
    wait_ms = None if restart_left_ms is None else restart_left_ms + prefill
    if best is not None and (wait_ms is None or (peer_ms or 0.0) <= wait_ms):
        return Route("peer", best, peer_ms or 0.0)
    if wait_ms is not None:
        return Route("wait", None, wait_ms)
    return Route("none")
