"""The figures a judge goes by, in seconds, taken from the settings."""

from dataclasses import dataclass

from recovery.config import ProbationSettings, Settings


@dataclass(frozen=True, slots=True)
class Rules:
    """Deadlines and thresholds of detection (requirements B1–B3, B6, D3, E4)."""

    ping_interval_s: float
    confirm_interval_s: float
    pong_deadline_s: float
    pong_deadline_max_s: float
    fail_threshold: int
    ewma_alpha: float
    probe_interval_s: tuple[float, float]
    probe_deadline_s: float
    stall_s: float
    stall_factor: float
    spin_s: float
    start_deadline_s: float
    compile_deadline_s: float
    prefill_deadline_s: float
    confirm_probes: int
    resolution_s: float
    """How late a movement of the counter may become visible: the agent's polling."""
    probation: ProbationSettings
    status_deadline_s: float = 0.5
    """Deadline of a direct status call."""
    agent_patience_s: float = 2.0
    """Silence of an agent whose host answers: it is stopped, or starved by its neighbours."""

    @classmethod
    def of(cls, settings: Settings) -> "Rules":
        """Take the figures from the settings."""
        beat, probe = settings.heartbeat, settings.probe
        return cls(
            ping_interval_s=beat.interval_ms / 1e3,
            confirm_interval_s=beat.confirm_interval_ms / 1e3,
            pong_deadline_s=beat.pong_deadline_ms / 1e3,
            pong_deadline_max_s=max(beat.pong_deadline_ms, beat.pong_deadline_max_ms) / 1e3,
            fail_threshold=beat.fail_threshold,
            ewma_alpha=beat.ewma_alpha,
            probe_interval_s=probe.interval_s,
            probe_deadline_s=probe.deadline_ms / 1e3,
            stall_s=probe.stall_ms / 1e3,
            stall_factor=probe.stall_factor,
            spin_s=probe.spin_s,
            start_deadline_s=probe.start_deadline_s,
            compile_deadline_s=probe.compile_deadline_s,
            prefill_deadline_s=probe.prefill_deadline_s,
            confirm_probes=settings.lease.confirm_probes,
            resolution_s=settings.node.progress_interval_ms / 1e3,
            probation=settings.probation,
        )
