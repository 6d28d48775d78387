"""The connection to the gRPC server."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import grpc

from cstp_grpc.client.tls import channel_credentials
from cstp_grpc.config import ConfigError
from cstp_grpc.errors import InvalidArgument

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

IN_TURN: Final = [
    ("grpc.service_config", json.dumps({"loadBalancingConfig": [{"round_robin": {}}]})),
]

PLAIN: Final = "grpc"
SECURE: Final = "grpcs"


@dataclass(frozen=True, slots=True)
class Upstream:
    """The gRPC server behind the bridge, `host:port` or with `grpc://` or `grpcs://` before it.

    Several IPv4 addresses with commas between are the workers of one server, which calls go to in turn.
    """

    target: str
    ca_file: Path | None = None
    """The authorities that certify it, in place of the system's."""
    announced: str | None = None
    """How others reach it, in the same form; None where that is how the bridge does."""


def connect(target: str, ca_file: Path | None = None) -> grpc.aio.Channel:
    """Return a channel to a server; it connects at the first call, and again whenever that is needed.

    Raises ConfigError.
    """
    address = address_of(target)
    if "," in address:
        return grpc.aio.insecure_channel(f"ipv4:{address}", options=[*OPTIONS, *IN_TURN])
    if not is_secure(target):
        return grpc.aio.insecure_channel(address, options=OPTIONS)
    try:
        credentials = channel_credentials(authorities(ca_file))
    except InvalidArgument as error:
        raise ConfigError(f"server.grpc_ca_file: {ca_file} holds no certificates in PEM") from error
    return grpc.aio.secure_channel(address, credentials, options=OPTIONS)


def address_of(target: str) -> str:
    """Return the `host:port` of a target. Raises ConfigError."""
    scheme, _, address = target.rpartition("://")
    if scheme not in ("", PLAIN, SECURE) or not address or "/" in address:
        raise ConfigError(f"server.grpc_target: {target} is not of the form HOST:PORT or grpcs://HOST:PORT")
    return address


def is_secure(target: str) -> bool:
    """Whether a target speaks TLS."""
    return target.startswith(f"{SECURE}://")


def authorities(path: Path | None) -> bytes | None:
    """Return the certificates in a file; None leaves it to the system's. Raises ConfigError."""
    if path is None:
        return None
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"server.grpc_ca_file: {path} cannot be read: {error.strerror}") from error
