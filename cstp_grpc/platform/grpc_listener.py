"""The connections of gRPC servers: when idle, silent or incomplete ones are closed."""

from __future__ import annotations

from typing import Final

PING_MILLISECONDS: Final = 30_000
"""Silence on a connection with open calls before a keepalive ping, and the ping's timeout. The same as in our
clients."""

IDLE_MILLISECONDS: Final = 300_000
"""How long a connection may have no calls. Each holds a file descriptor, and gRPC cannot limit their number. Chosen:
longer than agents pause between calls, and clients reconnect by themselves.
"""

HANDSHAKE_MILLISECONDS: Final = 10_000
"""Maximum time for the TLS and HTTP/2 handshakes of a new connection, against connections that send nothing (gRPC's
default is two minutes)."""


def connection_options() -> list[tuple[str, int]]:
    """Return the channel options that close the connections of a server."""
    return [
        ("grpc.server_handshake_timeout_ms", HANDSHAKE_MILLISECONDS),
        ("grpc.max_connection_idle_ms", IDLE_MILLISECONDS),
        # Otherwise the streams of a caller whose machine has vanished stay open for hours, and count for the limits.
        ("grpc.keepalive_time_ms", PING_MILLISECONDS),
        ("grpc.http2.ping_timeout_ms", PING_MILLISECONDS),
        # The server closes connections that ping more often than this. Our clients ping every PING_MILLISECONDS, and
        # half of it leaves room for jitter.
        ("grpc.http2.min_ping_interval_without_data_ms", PING_MILLISECONDS // 2),
    ]
