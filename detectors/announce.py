"""How what a watch has decided gets into Redis: verdicts, states, votes, figures (requirements A1, B4)."""

from collections.abc import Sequence

import structlog

from detectors.docket import JUDGED
from detectors.evidence import ChangeState, Dead, Vote
from detectors.figures import heartbeat, routing_figures
from detectors.fleet import Fleet
from detectors.outbox import Posting
from detectors.verdict import Judge
from recovery import events, registry
from recovery.registry import NodeState

log = structlog.get_logger()


async def death(fleet: Fleet, node: str, posting: Posting, verdict: Dead) -> None:
    """Publish a verdict; the event first, for that is what others wait for. Raises StaleEpoch, StoreUnavailable."""
    cause, evidence, took_ms = verdict.cause, verdict.evidence, round(verdict.took_s * 1e3, 1)
    about: dict[str, str | int | float] = {"node": node, "epoch": posting.epoch, "cause": cause, "evidence": evidence}
    fields = {**about, "sentinel": fleet.sentinel, "detected_ms": posting.wall_ms, "took_ms": took_ms}
    await events.publish(fleet.store, events.Kind.NODE_DEAD, fields)
    log.warning("sentinel.node_dead", **about, took_ms=took_ms)
    changed = await registry.set_state(
        fleet.store,
        node,
        posting.epoch,
        NodeState.DEAD,
        only_in=sorted(JUDGED),
        why=f"{cause}: {evidence}",
        by=fleet.sentinel,
        cause=cause,
        evidence=evidence,
        dead_ms=posting.wall_ms,
        took_ms=took_ms,
    )
    if changed:  # one sentinel only counts it
        fleet.metrics.deaths.labels(cause).inc()
        fleet.metrics.detection.labels(cause).observe(verdict.took_s)


async def state(fleet: Fleet, node: str, epoch: int, change: ChangeState) -> None:
    """Write a state or weight, unless the node is in other hands. Raises StaleEpoch, StoreUnavailable."""
    only_in = {*JUDGED, NodeState.STOPPED, NodeState.DRAINING} if change.state is NodeState.STOPPED else JUDGED
    changed = await registry.set_state(
        fleet.store,
        node,
        epoch,
        change.state,
        weight=change.weight,
        only_in=sorted(only_in),
        why=change.why,
        by=fleet.sentinel,
    )
    log.info(
        "sentinel.node_state",
        node=node,
        epoch=epoch,
        state=change.state.value,
        weight=change.weight,
        why=change.why,
        written=changed,
    )


async def vote(fleet: Fleet, node: str, epoch: int, given: Vote) -> None:
    """Tell the other sentinels that this one holds the node for dead. Raises StoreUnavailable."""
    fields: dict[str, str | int | float] = {"node": node, "epoch": epoch}
    fields |= {"cause": given.cause, "evidence": given.evidence}
    fields |= {"sentinel": fleet.sentinel, "took_ms": round(given.took_s * 1e3, 1)}
    await events.publish(fleet.store, events.Kind.NODE_VOTE, fields)
    fleet.metrics.votes.labels(given.cause).inc()


async def figures(fleet: Fleet, judges: Sequence[tuple[str, Judge]]) -> None:
    """Write the heartbeats of these nodes, and what routing goes by, in two round trips. Raises StoreUnavailable."""
    await events.publish_heartbeats(fleet.store, [heartbeat(node, judge, fleet.sentinel) for node, judge in judges])
    shown = [
        (node, judge.epoch, judge.state, routing_figures(judge, fleet.settings.routing))
        for node, judge in judges
        if judge.rtt.samples
    ]
    await registry.write_figures(fleet.store, shown)
