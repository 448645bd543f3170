"""What agents report, from the wire into plain values, and whether a report says anything new."""

from detectors.evidence import Gpu, Phase, Report
from protocol import unbroken_pb2 as pb

REST_S = 0.3
"""How long the reports of a node at rest may go unread. Reading each would cost as much as all else about a pong."""


def report_of(report: pb.NodeReport) -> Report:
    """Turn the wire's report into a plain one."""
    try:
        phase = Phase(report.phase)
    except ValueError:  # a newer agent's
        phase = Phase.UNSPECIFIED
    try:
        gpu = Gpu(report.gpu)
    except ValueError:
        gpu = Gpu.NONE
    return Report(
        epoch=report.epoch,
        phase=phase,
        ready=report.ready,
        progress=report.progress,
        running=report.running,
        waiting=report.waiting,
        free_ratio=report.free_ratio,
        detail=report.detail,
        age_s=report.progress_age_ms / 1e3,
        cpu_s=report.cpu_ms / 1e3,
        wait_s=report.wait_ms / 1e3,
        sample_age_s=report.sample_age_ms / 1e3,
        halted=report.halted,
        computes_on_cpu=report.computes_on_cpu,
        prefilling=report.prefilling,
        at_s=report.at_ms / 1e3,
        probe_s=report.probe_ms / 1e3,
        lease_held=report.lease_held,
        gpu=gpu,
        gpu_detail=report.gpu_detail,
    )


def at_rest(report: pb.NodeReport, known: Report | None) -> bool:
    """Whether a report says of a node without work just what the last one that was told said."""
    return (
        known is not None
        and not (report.running or report.waiting or known.running or known.waiting)
        and report.progress == known.progress
        and report.progress_age_ms <= REST_S * 1e3
        and report.epoch == known.epoch
        and report.phase == pb.PHASE_SERVING
        and known.phase is Phase.SERVING
        and report.ready is known.ready is True
        and report.lease_held is known.lease_held is True
        and int(report.gpu) == known.gpu.value
        and not (report.halted or known.halted or report.probe_ms or known.probe_s)
        and report.free_ratio == known.free_ratio
        and report.gpu_detail == known.gpu_detail
        and report.at_ms / 1e3 >= known.at_s
    )
