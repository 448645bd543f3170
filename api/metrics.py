"""The gateway's figures for Prometheus."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_GAPS = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 1, 2, 5, 10, 30, 60)


class Metrics:
    """One gateway's counters, in a registry of their own so that two apps may live in one process."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self.streams = Counter(
            "unbroken_streams", "Requests that ended, by outcome", ["outcome"], registry=self._registry
        )
        self.resumes = Counter(
            "unbroken_resumes",
            "Attempts that took over from another, by exactness class and cause",
            ["exactness", "cause"],
            registry=self._registry,
        )
        self.gaps = Histogram(
            "unbroken_resume_gap_seconds",
            "Silence a client saw at a resume",
            buckets=_GAPS,
            registry=self._registry,
        )
        self.waits = Histogram(
            "unbroken_resume_wait_seconds",
            "The part of that silence before the next attempt was sent: all but the next engine's own work",
            buckets=_GAPS,
            registry=self._registry,
        )
        self.inflight = Gauge("unbroken_requests_running", "Requests being served", registry=self._registry)
        self.queued = Gauge("unbroken_requests_waiting", "Requests waiting for a node", registry=self._registry)
        self.journal_failures = Counter(
            "unbroken_journal_failures", "Journal writes that Redis did not take", registry=self._registry
        )

    def render(self) -> bytes:
        """Return everything in Prometheus' text format."""
        return generate_latest(self._registry)
