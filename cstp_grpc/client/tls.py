"""TLS credentials for gRPC clients, TLS contexts for HTTP clients, and the CA files and card keys of other servers."""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import grpc

from cstp_grpc.common.extras import require_extra
from cstp_grpc.contract.errors import ConfigError, InvalidArgument

if TYPE_CHECKING:
    from cstp_grpc.contract.card_keys import PublicKey

HASHED_CERTIFICATE_NAME = re.compile(r"[0-9a-f]{8}\.\d+")
"""The file names that OpenSSL reads in a folder of certificates."""


def channel_credentials(
    root_certificates: bytes | None, client_certificate: Path | None = None
) -> grpc.ChannelCredentials:
    """Return credentials that verify servers by the given authorities (PEM), or by the system's.

    `client_certificate` is shown to servers that ask for one. Raises InvalidArgument.
    """
    shown: bytes | None = None
    if client_certificate is not None:
        load_client_certificate(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), client_certificate)
        shown = client_certificate.read_bytes()
    if root_certificates is None:
        return grpc.ssl_channel_credentials(system_authorities(), shown, shown)
    # Only to check them now: gRPC would fail at the first connection, without naming the reason.
    context_for_authorities(root_certificates)
    # The library reads the key and the certificates each from the whole file.
    return grpc.ssl_channel_credentials(root_certificates, shown, shown)


def load_client_certificate(context: ssl.SSLContext, path: Path) -> None:
    """Have a context show the certificate in a PEM file, which has its key, too. Raises InvalidArgument."""
    try:
        context.load_cert_chain(path, password=refuse_password)
    except (ssl.SSLError, OSError, ValueError) as error:
        raise InvalidArgument.field(
            "client_certificate", "is no PEM file with a certificate and its private key, without a password"
        ) from error


def refuse_password() -> str:
    """Raise ValueError, since OpenSSL would ask for the password of a key on the terminal."""
    raise ValueError("the key has a password")


def tls_context(
    root_certificates: bytes | None, scheme: str = "https", client_certificate: Path | None = None
) -> ssl.SSLContext:
    """Return the TLS context that verifies servers by the given authorities (PEM), or by the system's.

    For the scheme http, whose connections have no use for it, it trusts nobody instead of the system's authorities.
    `client_certificate` is shown to servers that ask for one. Raises InvalidArgument.
    """
    context = build_tls_context(root_certificates, scheme)
    if client_certificate is not None:
        load_client_certificate(context, client_certificate)
    return context


def build_tls_context(root_certificates: bytes | None, scheme: str) -> ssl.SSLContext:
    """Return the TLS context for authorities, as `tls_context` does."""
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


SETTING_OF_FIELD: Final[Mapping[str, str]] = {"token": "token", "root_certificates": "ca_file", "card_keys": "card_key"}
"""Settings of a remote server by the error field that they cause; all others are about its url."""


def read_ca_file(ca_file: Path | None) -> bytes | None:
    """Return the CA certificates of a file, in PEM, or None without one. Raises OSError, InvalidArgument."""
    if ca_file is None:
        return None
    authorities = ca_file.read_bytes()
    if not authorities.strip():
        # Security: an empty bundle would make gRPC trust the system's authorities instead.
        raise InvalidArgument.field("root_certificates", "are no certificates in PEM")
    # Checked now, because gRPC would fail only when it connects.
    tls_context(authorities)
    return authorities


def read_card_keys(card_key: Path | None, key: str) -> list[PublicKey]:
    """Return the keys of a file, one of which must have signed the agent card. Return none without a file.

    `key` names the settings of the server. Raises ConfigError.
    """
    if card_key is None:
        return []
    require_extra("a2a")
    from cstp_grpc.contract.card_keys import UnusableKey, read_public_keys

    try:
        return read_public_keys(card_key.read_bytes())
    except OSError as error:
        raise ConfigError(f"{key}.card_key: {card_key} cannot be read: {error.strerror}") from error
    except UnusableKey as error:
        raise ConfigError(f"{key}.card_key: {card_key} {error}") from error


@contextmanager
def raise_config_errors(key: str, ca_file: Path | None) -> Iterator[None]:
    """Convert errors about the settings at `key` to ConfigError."""
    try:
        yield
    except InvalidArgument as error:
        violation = error.violations[0]
        raise ConfigError(f"{key}.{SETTING_OF_FIELD.get(violation.field, 'url')}: {violation.description}") from error
    except OSError as error:
        raise ConfigError(f"{key}.ca_file: {ca_file} cannot be read: {error.strerror}") from error
