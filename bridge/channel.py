"""The connection to the gRPC server."""

from __future__ import annotations

from typing import Final

import grpc

OPTIONS: Final = [
    # The server bounds its answers and their error details; the bridge does not judge them again.
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_metadata_size", 1_048_576),
    ("grpc.absolute_max_metadata_size", 1_048_576),
    # The pauses between attempts to reach a server that is away grow to two minutes by default.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2000),
    # The server is a neighbour: a proxy for the internet does not lead to it.
    ("grpc.enable_http_proxy", 0),
]


def connect(target: str) -> grpc.aio.Channel:
    """Return a channel to a server, `host:port`; it connects at the first call, and again whenever that is needed."""
    return grpc.aio.insecure_channel(target, options=OPTIONS)
