"""CA files and card keys that the settings name for other servers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cstp_grpc.client.tls import tls_context
from cstp_grpc.errors import ConfigError, InvalidArgument

if TYPE_CHECKING:
    from cstp_grpc.card_keys import PublicKey

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
    from cstp_grpc.card_keys import UnusableKey, read_public_keys

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
