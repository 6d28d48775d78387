"""Server certificates, read again when their files change."""

from __future__ import annotations

import logging
import ssl
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeAlias, cast

import grpc

from cstp_grpc.common.lazy_dataclass import dataclass
from cstp_grpc.contract.errors import ConfigError

if TYPE_CHECKING:
    from cstp_grpc.platform.config import TlsSettings

logger = logging.getLogger(__name__)

KEY_MISMATCH_REASONS = frozenset({"KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH", "NO_CERTIFICATE_ASSIGNED"})
"""OpenSSL reasons for a key that belongs to another certificate; the last one if the key type differs."""
WEAK_KEY_REASONS = frozenset({"EE_KEY_TOO_SMALL", "CA_KEY_TOO_SMALL", "CA_MD_TOO_WEAK"})
"""OpenSSL reasons for keys and signatures below its security level."""

FileStamps: TypeAlias = tuple[tuple[int, int, int] | None, ...]
"""Inode, size and modification time of each file, None for a missing one; a difference means that a file changed."""


@dataclass(frozen=True, slots=True)
class CertificateKeyPair:
    """A valid certificate with its issuers, and its key, both PEM."""

    certificate: bytes
    key: bytes
    context: ssl.SSLContext
    """The TLS context of an HTTPS server."""
    client_authorities: bytes | None = None
    """The authorities that certify clients, PEM."""


class ServerCertificate:
    """A server's certificate and key, reloaded when their files change. Thread-safe.

    If the files become invalid, for instance while only one of the two has been replaced, the previous pair stays in
    use and the log says so once. `setting` names the section of the settings in messages: `grpc.tls`. Raises
    ConfigError if the files are invalid at the start.
    """

    def __init__(self, files: TlsSettings, setting: str) -> None:
        self._certificate = files.certificate
        self._key = files.key
        self._client_ca = files.client_ca
        self._requires_clients = files.client_ca is not None and files.client_certificates == "required"
        self._setting = setting
        # Guards _seen and _pair. Held while the files are read, so that concurrent handshakes read them once.
        self._lock = threading.Lock()
        self._seen = self._file_stamps()
        self._pair = self._read(self._seen)

    @classmethod
    def load(cls, files: TlsSettings | None, setting: str) -> Self | None:
        """Load the certificate of a server. Return None for a server without TLS. Raises ConfigError."""
        return None if files is None else cls(files, setting)

    def current(self) -> CertificateKeyPair:
        """Return the pair in use, reloaded first if the files changed."""
        with self._lock:
            state = self._file_stamps()
            if state != self._seen:
                self._renew(state)
            return self._pair

    def grpc_credentials(self) -> grpc.ServerCredentials:
        """Return the credentials for a gRPC server: each new connection gets the current certificate."""
        configured = self.current()

        # gRPC calls this on its own threads, for every handshake. Two of them may see the same new pair; then gRPC
        # loads it twice, which is harmless.
        def fetch_if_renewed() -> grpc.ServerCertificateConfiguration | None:
            nonlocal configured
            pair = self.current()
            if pair is configured:
                return None
            configured = pair
            return self._grpc_configuration(pair)

        # None keeps the present configuration; the type stubs of gRPC do not allow for it.
        fetch = cast("Callable[[], grpc.ServerCertificateConfiguration]", fetch_if_renewed)
        return grpc.dynamic_ssl_server_credentials(
            self._grpc_configuration(configured), fetch, require_client_authentication=self._requires_clients
        )

    def https_context(self) -> ssl.SSLContext:
        context = self.current().context

        def renew(connection: ssl.SSLObject, _: str | None, __: ssl.SSLContext) -> None:
            connection.context = self.current().context

        # Called for every handshake, also if the client names no server.
        context.sni_callback = renew
        return context

    def _grpc_configuration(self, pair: CertificateKeyPair) -> grpc.ServerCertificateConfiguration:
        authorities = pair.client_authorities if self._requires_clients else None
        return grpc.ssl_server_certificate_configuration([(pair.key, pair.certificate)], authorities)

    def _renew(self, state: FileStamps) -> None:
        # First, so that files that stay invalid are read and reported once, not at every handshake.
        self._seen = state
        try:
            self._pair = self._read(state)
        except ConfigError as error:
            logger.warning("%s; the certificate before stays in force", error)
        else:
            logger.info("%s: a new certificate is in force", self._setting)

    def _read(self, state: FileStamps) -> CertificateKeyPair:
        """Read the pair from the files, which had these stamps before. Raises ConfigError."""
        certificate, key = self._read_file("certificate", self._certificate), self._read_file("key", self._key)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        # RFC 9113, section 9.2, requires TLS 1.2 for HTTP/2; RFC 8996 deprecates the versions before.
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if not has_certificate(certificate):
            raise self._setting_error("certificate", f"{self._certificate} contains no certificate in PEM")
        try:
            context.load_cert_chain(self._certificate, self._key, password=empty_password)
        except (ssl.SSLError, OSError) as error:
            raise self._load_error(error) from error
        authorities = self._read_client_authorities(context)
        if self._file_stamps() != state:
            # The certificate may be of one pair and the key of another. Empty stamps match no files, so that the next
            # call reads them again.
            self._seen = ()
            raise self._setting_error("certificate", f"{self._certificate} or its key changed while they were read")
        return CertificateKeyPair(certificate, key, context, authorities)

    def _read_client_authorities(self, context: ssl.SSLContext) -> bytes | None:
        """Have a context ask clients for certificates, and return the authorities; None without client certificates."""
        if self._client_ca is None:
            return None
        authorities = self._read_file("client_ca", self._client_ca)
        try:
            context.load_verify_locations(cadata=authorities.decode("ascii", "ignore"))
        except (ssl.SSLError, ValueError) as error:
            raise self._setting_error("client_ca", f"{self._client_ca} contains no certificates in PEM") from error
        context.verify_mode = ssl.CERT_REQUIRED if self._requires_clients else ssl.CERT_OPTIONAL
        return authorities

    def _load_error(self, error: OSError) -> ConfigError:
        reason = getattr(error, "reason", None)
        if reason in KEY_MISMATCH_REASONS:
            return self._setting_error("key", f"{self._key} does not belong to the certificate")
        if reason in WEAK_KEY_REASONS:
            return self._setting_error("certificate", f"{self._certificate} has a key or a signature that is too weak")
        return self._setting_error("key", f"{self._key} contains no private key in PEM without a password")

    def _read_file(self, name: str, path: Path) -> bytes:
        try:
            return path.read_bytes()
        except OSError as error:
            raise self._setting_error(name, f"{path} cannot be read: {error.strerror}") from error

    def _setting_error(self, name: str, problem: str) -> ConfigError:
        return ConfigError(f"{self._setting}.{name}: {problem}")

    def _file_stamps(self) -> FileStamps:
        paths = (self._certificate, self._key, self._client_ca)
        return tuple(file_stamp(path) for path in paths if path is not None)


def file_stamp(path: Path) -> tuple[int, int, int] | None:
    """Return inode, size and modification time of a file, or None if it is missing."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def has_certificate(content: bytes) -> bool:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(cadata=content.decode("ascii", "ignore"))
    except (ssl.SSLError, ValueError):
        return False
    return True


def empty_password() -> str:
    """Return an empty password; otherwise OpenSSL would prompt on the terminal."""
    return ""
