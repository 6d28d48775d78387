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
    # gRPC would say that they cannot be used only when it connects, and not clearly.
    context_for_authorities(root_certificates)
    return grpc.ssl_channel_credentials(root_certificates)


def tls_context(root_certificates: bytes | None) -> ssl.SSLContext:
    """Return the TLS context that verifies https servers by the given authorities (PEM), or by the system's.

    Raises InvalidArgument.
    """
    if root_certificates is None:
        return ssl.create_default_context()
    context = context_for_authorities(root_certificates)
    # What is given is trusted, also where it is the certificate of the server itself; gRPC does likewise.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


def context_for_authorities(root_certificates: bytes) -> ssl.SSLContext:
    """Return a TLS context that trusts only the given authorities (PEM). Raises InvalidArgument."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        # Bundles name each authority between the certificates, in any script.
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
    # A certificate that was taken away may leave the link to it behind.
    return (
        b"\n".join(
            file.read_bytes() for file in folder if HASHED_CERTIFICATE_NAME.fullmatch(file.name) and file.is_file()
        )
        or None
    )
