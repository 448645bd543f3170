"""How channels to agents are opened and servers bound: options, token, and the way errors travel."""

from collections.abc import Sequence

import grpc
import grpc.aio

STALE_EPOCH_KEY = "unbroken-current-epoch"
"""Trailing metadata of a FAILED_PRECONDITION: the agent's current epoch."""

OPERATOR_KEY = "unbroken-needs-operator"
"""Trailing metadata of a FAILED_PRECONDITION: no repetition helps, only a human can."""

CLIENT_OPTIONS: Sequence[tuple[str, int]] = (
    ("grpc.keepalive_time_ms", 2_000),
    ("grpc.keepalive_timeout_ms", 2_000),
    # Without it a stopped peer is noticed after 60 s, whatever the keepalive says.
    ("grpc.http2.ping_timeout_ms", 3_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    # Also the time a connection may take to come up: three round trips, and a lost packet.
    ("grpc.min_reconnect_backoff_ms", 3_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # Two channels to one agent must be two connections: the second path confirms the first.
    ("grpc.use_local_subchannel_pool", 1),
)

SERVER_OPTIONS: Sequence[tuple[str, int]] = (
    # Else pings in silent phases end in GOAWAY too_many_pings.
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 500),
    ("grpc.http2.min_ping_interval_without_data_ms", 500),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_ping_strikes", 0),
    # A second agent on the same port must fail, not share it.
    ("grpc.so_reuseport", 0),
)


def open_channel(address: str) -> grpc.aio.Channel:
    """Open a channel to an agent (host:port). Made after any fork; the caller closes it."""
    return grpc.aio.insecure_channel(address, options=list(CLIENT_OPTIONS))


def credentials(token: str | None) -> tuple[tuple[str, str], ...]:
    """Return the call metadata that carries the agents' token."""
    return (("authorization", f"Bearer {token}"),) if token else ()
