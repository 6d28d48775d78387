"""TLS credentials for gRPC clients, and TLS contexts for HTTP clients."""

from __future__ import annotations

import re
import ssl
from pathlib import Path

import grpc

from cstp_grpc.errors import InvalidArgument

HASHED_CERTIFICATE_NAME = re.compile(r"[0-9a-f]{8}\.\d+")
"""The file names that OpenSSL reads in a folder of certificates."""


def channel_credentials(root_certificates: bytes | None) -> grpc.ChannelCredentials:
    """Return credentials that verify servers by the given authorities (PEM), or by the system's.

    Raises InvalidArgument.
    """
    if root_certificates is None:
        return grpc.ssl_channel_credentials(system_authorities())
    # Only to check them now: gRPC would fail at the first connection, without naming the reason.
    context_for_authorities(root_certificates)
    return grpc.ssl_channel_credentials(root_certificates)


def tls_context(root_certificates: bytes | None, scheme: str = "https") -> ssl.SSLContext:
    """Return the TLS context that verifies servers by the given authorities (PEM), or by the system's.

    For the scheme http, whose connections have no use for it, it trusts nobody instead of the system's authorities.
    Raises InvalidArgument.
    """
    if root_certificates is None:
        # Measured: OpenSSL takes 20 to 30 ms to read the authorities of the system.
        return ssl.create_default_context() if scheme == "https" else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context = context_for_authorities(root_certificates)
    # Trust the given certificates even if none of them is a root, for instance a server's own; gRPC does the same.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


def context_for_authorities(root_certificates: bytes) -> ssl.SSLContext:
    """Return a TLS context that trusts only the given authorities (PEM). Raises InvalidArgument."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        # Bundles have names of authorities in any script between the certificates, and OpenSSL takes ASCII only.
        context.load_verify_locations(cadata=root_certificates.decode("ascii", "ignore"))
    except (ssl.SSLError, ValueError) as error:
        raise InvalidArgument.field("root_certificates", "are no certificates in PEM") from error
    return context


def system_authorities() -> bytes | None:
    """Return the certificate authorities of the system that OpenSSL finds (PEM), or None.

    gRPC's built-in list lacks the authorities that an organisation has added.
    """
    found = ssl.get_default_verify_paths()
    if found.cafile:
        return Path(found.cafile).read_bytes() or None
    folder = sorted(Path(found.capath).iterdir()) if found.capath else []
    # `is_file` skips dangling links to certificates that were removed.
    return (
        b"\n".join(
            file.read_bytes() for file in folder if HASHED_CERTIFICATE_NAME.fullmatch(file.name) and file.is_file()
        )
        or None
    )
