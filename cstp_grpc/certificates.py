"""The certificates by which our servers show who they are, read again when their files change."""

from __future__ import annotations

import logging
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self, TypeAlias, cast

import grpc

from cstp_grpc.errors import ConfigError

logger = logging.getLogger(__name__)

FOREIGN = frozenset({"KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH", "NO_CERTIFICATE_ASSIGNED"})
"""How OpenSSL says that a key belongs to another certificate; the last one, where it is of another kind."""
WEAK = frozenset({"EE_KEY_TOO_SMALL", "CA_KEY_TOO_SMALL", "CA_MD_TOO_WEAK"})

State: TypeAlias = tuple[tuple[int, int, int] | None, ...]
"""By what a change of files is noticed: inode, size and time of each, None where it is not there."""


class Files(Protocol):
    """Which files hold the certificate and the key, as the settings have them."""

    @property
    def certificate(self) -> Path:
        """The certificate, followed by those that certify it."""

    @property
    def key(self) -> Path:
        """Its private key."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate that can be used, followed by those that certify it, and its key, both PEM."""

    certificate: bytes
    key: bytes
    context: ssl.SSLContext
    """How a server of HTTPS uses it."""


class ServerCertificate:
    """A server's certificate and key, always as their files have them; safe for many threads.

    Files that cannot be used, for instance while only one of the two is new, leave the pair before in force, and the
    log says so once. `setting` names the section of the settings in what is said: `grpc.tls`. Raises ConfigError where
    there is nothing to begin with.
    """

    def __init__(self, files: Files, setting: str) -> None:
        self._certificate = files.certificate
        self._key = files.key
        self._setting = setting
        self._lock = threading.Lock()
        self._seen = self._state()
        self._pair = self._read(self._seen)

    @classmethod
    def of(cls, files: Files | None, setting: str) -> Self | None:
        """Return the certificate of a server; None for one that is plain. Raises ConfigError."""
        return None if files is None else cls(files, setting)

    def current(self) -> Pair:
        """Return the pair in force; one that is new in the files is from now on."""
        with self._lock:
            state = self._state()
            if state != self._seen:
                self._renew(state)
            return self._pair

    def grpc_credentials(self) -> grpc.ServerCredentials:
        """Return how a gRPC server uses it: each new connection gets the certificate that is current then."""
        given = self.current()

        def renewed() -> grpc.ServerCertificateConfiguration | None:
            nonlocal given
            found = self.current()
            if found is given:
                return None
            given = found
            return configuration(found)

        # None keeps what gRPC has, which its types do not say.
        fetch = cast("Callable[[], grpc.ServerCertificateConfiguration]", renewed)
        return grpc.dynamic_ssl_server_credentials(configuration(given), fetch)

    def https_context(self) -> ssl.SSLContext:
        """Return how an HTTPS server uses it: each new connection gets the certificate that is current then."""
        context = self.current().context

        def renew(connection: ssl.SSLObject, _: str | None, __: ssl.SSLContext) -> None:
            connection.context = self.current().context

        context.sni_callback = renew
        return context

    def _renew(self, state: State) -> None:
        self._seen = state
        try:
            self._pair = self._read(state)
        except ConfigError as error:
            logger.warning("%s; the certificate before stays in force", error)
        else:
            logger.info("%s: a new certificate is in force", self._setting)

    def _read(self, state: State) -> Pair:
        """Return the pair in the files, which were in a state before. Raises ConfigError."""
        certificate, key = self._content("certificate", self._certificate), self._content("key", self._key)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if not has_certificate(certificate):
            raise self._unusable("certificate", f"{self._certificate} holds no certificate in PEM")
        try:
            context.load_cert_chain(self._certificate, self._key, password=no_password)
        except (ssl.SSLError, OSError) as error:
            raise self._judged(error) from error
        if self._state() != state:
            # What was read may be half of one pair and half of another.
            self._seen = ()
            raise self._unusable("certificate", f"{self._certificate} or its key changed while they were read")
        return Pair(certificate, key, context)

    def _judged(self, error: OSError) -> ConfigError:
        reason = getattr(error, "reason", None)
        if reason in FOREIGN:
            return self._unusable("key", f"{self._key} does not belong to the certificate")
        if reason in WEAK:
            return self._unusable("certificate", f"{self._certificate} has a key or a signature that is too weak")
        return self._unusable("key", f"{self._key} holds no private key in PEM that needs no password")

    def _content(self, name: str, path: Path) -> bytes:
        try:
            return path.read_bytes()
        except OSError as error:
            raise self._unusable(name, f"{path} cannot be read: {error.strerror}") from error

    def _unusable(self, name: str, problem: str) -> ConfigError:
        return ConfigError(f"{self._setting}.{name}: {problem}")

    def _state(self) -> State:
        return tuple(state_of(path) for path in (self._certificate, self._key))


def configuration(pair: Pair) -> grpc.ServerCertificateConfiguration:
    """Return a pair as gRPC takes it."""
    return grpc.ssl_server_certificate_configuration([(pair.key, pair.certificate)])


def state_of(path: Path) -> tuple[int, int, int] | None:
    """Return by what a change of a file is noticed; None where it is not there."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def has_certificate(content: bytes) -> bool:
    """Whether there is a certificate in a PEM file."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(cadata=content.decode("ascii", "ignore"))
    except (ssl.SSLError, ValueError):
        return False
    return True


def no_password() -> str:
    """Return none, where OpenSSL would ask on the terminal."""
    return ""
