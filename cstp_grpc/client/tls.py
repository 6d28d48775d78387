"""Whom gRPC trusts to say who a server is."""

from __future__ import annotations

import re
import ssl
from pathlib import Path

import grpc

from cstp_grpc.errors import InvalidArgument

HASHED = re.compile(r"[0-9a-f]{8}\.\d+")
"""What OpenSSL reads of a folder of certificates."""


def channel_credentials(root_certificates: bytes | None) -> grpc.ChannelCredentials:
    """Return how grpcs servers are verified: by the given authorities (PEM), or by the system's.

    Raises InvalidArgument.
    """
    if root_certificates is None:
        return grpc.ssl_channel_credentials(system_authorities())
    # gRPC would say that they cannot be used only when it connects, and not clearly.
    trusting(root_certificates)
    return grpc.ssl_channel_credentials(root_certificates)


def trusting(root_certificates: bytes) -> ssl.SSLContext:
    """Return how servers are verified by the given authorities (PEM) alone. Raises InvalidArgument."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        # Bundles name each authority between the certificates, in any script.
        context.load_verify_locations(cadata=root_certificates.decode("ascii", "ignore"))
    except (ssl.SSLError, ValueError) as error:
        raise InvalidArgument.field("root_certificates", "are no certificates in PEM") from error
    return context


def system_authorities() -> bytes | None:
    """Return the authorities that OpenSSL finds in the system, PEM; None where there are none.

    Those that gRPC brings along, which it trusts otherwise, hold none that an organisation has added.
    """
    found = ssl.get_default_verify_paths()
    if found.cafile:
        return Path(found.cafile).read_bytes() or None
    folder = sorted(Path(found.capath).iterdir()) if found.capath else []
    # A certificate that was taken away may leave the link to it behind.
    return b"\n".join(file.read_bytes() for file in folder if HASHED.fullmatch(file.name) and file.is_file()) or None
