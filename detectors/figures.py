"""A node's figures: for routing, into the registry; for whoever looks on, into the heartbeats stream.

Pure (requirements A1, B4).
"""

from detectors.verdict import Judge
from recovery.config import RoutingSettings
from recovery.policy import score

Figures = dict[str, str | int | float]


def routing_figures(judge: Judge, routing: RoutingSettings) -> Figures:
    """Return what routing goes by; only what is known."""
    rtt, report = judge.rtt, judge.report
    link: Figures = {
        "rtt_us": round(rtt.last_us),
        "ewma_us": round(rtt.ewma_us),
        "baseline_us": round(rtt.baseline_us or 0),
        "hold_s": judge.hold_s,
    }
    if report is None:
        return link
    points = score(rtt.ewma_us / 1e3, report.free_ratio, routing.rtt_weight, routing.memory_weight)
    return link | {
        "running": report.running,
        "waiting": report.waiting,
        "free_ratio": round(report.free_ratio, 4),
        "score": round(points, 4),
    }


def heartbeat(node: str, judge: Judge, sentinel: str) -> Figures:
    """Return one aggregated heartbeat."""
    rtt, report = judge.rtt, judge.report
    return {
        "node": node,
        "epoch": judge.epoch,
        "state": judge.state.value,
        "rtt_us": round(rtt.last_us),
        "ewma_us": round(rtt.ewma_us),
        "jitter_us": round(rtt.jitter_us),
        "misses": judge.misses,
        "running": report.running if report else 0,
        "waiting": report.waiting if report else 0,
        "free_ratio": round(report.free_ratio, 4) if report else 0.0,
        "progress": report.progress if report else 0,
        "phase": report.phase.name if report else "UNSPECIFIED",
        "sentinel": sentinel,
    }
