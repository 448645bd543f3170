"""A sentinel's figures for Prometheus, served from a thread of their own."""

from collections.abc import Callable

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

from recovery.config import SentinelSettings
from recovery.errors import SettingsError

_LATENCIES = (0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.24, 0.3, 0.5, 1, 2, 4, 6, 10, 30)

log = structlog.get_logger()


class Metrics:
    """One sentinel's counters, in a registry of their own so that two may live in one process."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self.detection = Histogram(
            "unbroken_detection_seconds",
            "From a node's last sign of life to the verdict, by cause",
            ["cause"],
            buckets=_LATENCIES,
            registry=self._registry,
        )
        self.deaths = Counter(
            "unbroken_deaths", "Verdicts this sentinel published, by cause", ["cause"], registry=self._registry
        )
        self.votes = Counter(
            "unbroken_votes",
            "Votes of this sentinel for an unproven death (repeated while it stands), by cause",
            ["cause"],
            registry=self._registry,
        )
        self.misses = Counter("unbroken_pongs_missed", "Pongs that were late", registry=self._registry)
        self.interval = Gauge(
            "unbroken_ping_interval_seconds",
            "Pause between two pings of a node in no doubt; longer than set while this sentinel has too many nodes",
            registry=self._registry,
        )
        self.watched = Gauge("unbroken_nodes_watched", "Nodes this sentinel watches", registry=self._registry)
        self.first = Gauge("unbroken_nodes_primary", "Nodes it is the primary of", registry=self._registry)
        self.blind = Gauge("unbroken_blind", "1 while it holds back unproven verdicts", registry=self._registry)
        self.sleeps = Counter(
            "unbroken_sentinel_sleeps",
            "How often the sentinel itself was stopped, starved or blocked for a second or more",
            registry=self._registry,
        )

    def serve(self, settings: SentinelSettings) -> Callable[[], None]:
        """Serve `/metrics` where the settings say so; return what ends it. Raises SettingsError."""
        if settings.metrics_port == 0:
            return lambda: None
        try:
            server, thread = start_http_server(settings.metrics_port, settings.metrics_host, self._registry)
        except OSError as error:
            raise SettingsError(
                f"sentinel.metrics_port: cannot listen on {settings.metrics_host}:{settings.metrics_port}: {error}"
            ) from error
        log.info("sentinel.metrics", host=settings.metrics_host, port=settings.metrics_port)

        def end() -> None:
            server.shutdown()
            server.server_close()
            thread.join(2.0)

        return end
