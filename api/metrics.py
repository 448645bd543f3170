"""The gateway's figures for Prometheus."""

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from recovery.registry import Node

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

    def show_nodes(self, nodes: Callable[[], Iterable[Node]]) -> None:
        """Show the nodes' weights and states as they are when somebody asks; gone nodes leave nothing behind."""
        self._registry.register(_Nodes(nodes))

    def render(self) -> bytes:
        """Return everything in Prometheus' text format."""
        return generate_latest(self._registry)


class _Nodes(Collector):
    def __init__(self, nodes: Callable[[], Iterable[Node]]) -> None:
        self._nodes = nodes

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """Read the gateway's own picture of the nodes."""
        weight = GaugeMetricFamily(
            "unbroken_node_weight", "Share of normal traffic a node may take, 0..1", labels=["node"]
        )
        state = GaugeMetricFamily("unbroken_node_state", "1 for the state a node is in", labels=["node", "state"])
        for node in self._nodes():
            weight.add_metric([node.id], node.weight)
            state.add_metric([node.id, node.state.value], 1.0)
        return weight, state
