"""The authorities that certify the servers which are called."""

from __future__ import annotations

from pathlib import Path

from cstp_grpc.client.jsonrpc import tls_context
from cstp_grpc.errors import InvalidArgument


def read_authorities(ca_file: Path | None) -> bytes | None:
    """Return the authorities of a file, in PEM; None without one. Raises OSError, InvalidArgument."""
    if ca_file is None:
        return None
    authorities = ca_file.read_bytes()
    if not authorities.strip():
        # Without any, the system's would be believed.
        raise InvalidArgument.field("root_certificates", "are no certificates in PEM")
    # gRPC itself would only notice when it connects.
    tls_context(authorities)
    return authorities
