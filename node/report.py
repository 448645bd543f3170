"""What an agent says of its node: to the sentinel in each pong, to the registry when it changes."""

import math
import time

from node.host import Host
from node.lease import LeaseKeeper
from node.progress import View
from protocol import unbroken_pb2 as pb
from recovery.config import NodeSettings


def node_report(host: Host, lease: LeaseKeeper, probe_s: float = 0.0) -> pb.NodeReport:
    """Return the node as it is now; no question to anybody, so it is cheap enough for every pong.

    `probe_s`: how long a probe has been under way, 0 when there is none.
    """
    now = time.monotonic()
    engine = host.engine if host.engine is not None and not host.engine.dead else None
    view = engine.progress.view(now) if engine else View()
    return pb.NodeReport(
        node=host.node,
        epoch=host.epoch,
        phase=pb.PHASE_COMPILING if host.phase == pb.PHASE_SERVING and view.compiling else host.phase,
        ready=host.ready,
        progress=view.counter,
        progress_age_ms=view.age_ms,
        still_ms=view.still_ms,
        running=view.running,
        waiting=view.waiting,
        free_ratio=view.free_ratio,
        engine_url=engine.record.url if engine else "",
        lease_held=lease.held,
        engine_pid=engine.record.pid if engine else 0,
        detail=host.detail,
        cpu_ms=engine.effort.cpu_ms if engine else 0,
        wait_ms=engine.effort.wait_ms if engine else 0,
        sample_age_ms=round(engine.effort.age_s(now) * 1_000) if engine else 0,
        halted=engine is not None and engine.watch is not None and engine.watch.halted,
        computes_on_cpu=engine is not None and engine.on_cpu,
        prefilling=view.prefilling,
        at_ms=round(now * 1_000),
        probe_ms=math.ceil(probe_s * 1_000),
    )


def registry_fields(
    host: Host, settings: NodeSettings, agent: str, machine: str
) -> dict[str, str | int | float | bool]:
    """Return the node's registry fields; `agent` is its host:port, `machine` the name for limits per host."""
    fields: dict[str, str | int | float | bool] = {"agent": agent, "kind": settings.engine, "host": machine}
    engine = host.engine
    if engine is None or engine.capabilities is None or not host.serving:
        fields |= {"model": settings.model_name, "slots": settings.slots, "context": settings.context}
        fields |= {"engine_url": ""}
        return fields | ({"detail": host.detail} if host.detail else {})
    known = engine.capabilities
    return fields | {
        "engine_url": engine.record.url,
        "kind": known.kind,
        "model": known.model,
        "identity": known.identity,
        "context": known.context,
        "slots": known.slots,
        "invariant": known.invariant,
        "deterministic_seed": known.deterministic_seed,
        "restart_ms": engine.record.restart_ms,
        "detail": "",
    }
