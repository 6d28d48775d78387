"""Callers that are identified by their client certificates, which TLS has verified."""

from __future__ import annotations

import base64
import binascii
import hashlib
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from cachetools import LRUCache
from cryptography import x509
from cryptography.x509.oid import NameOID

from cstp_grpc.common.lazy_dataclass import dataclass
from cstp_grpc.contract.call_origin import BRIDGE_KEY_METADATA_KEY, CERTIFICATE_METADATA_KEY, FORWARDED_FOR_METADATA_KEY
from cstp_grpc.core.tokens.model import TokenIdentity
from cstp_grpc.server.identity.call_origin import CallOrigins
from cstp_grpc.server.interceptors.admission import InboundCall

PEM_PROPERTY: Final = "x509_pem_cert"
"""The property of gRPC's authentication context that has the peer's certificate."""
MAX_KNOWN: Final = 1024
"""Maximum number of certificates whose agents are cached."""


@dataclass(frozen=True, slots=True)
class CertificateAgent:
    """An agent, and the one name by which its certificates are recognized."""

    identity: TokenIdentity
    uri: str | None = None
    dns: str | None = None
    common_name: str | None = None


@dataclass(frozen=True, slots=True)
class KnownCertificate:
    """The agent of a certificate, or None, and its validity in seconds since 1970."""

    identity: TokenIdentity | None
    valid_from: float
    valid_until: float

    def is_valid(self, at: float) -> bool:
        return self.valid_from <= at < self.valid_until


class ClientCertificates:
    """Identifies callers by the certificates that they showed the server, or a bridge with its key."""

    def __init__(
        self, agents: Sequence[CertificateAgent], origins: CallOrigins, clock: Callable[[], float] = time.time
    ) -> None:
        self._agents = agents
        self._origins = origins
        self._clock = clock
        # By digests; TLS has verified its certificates, so that strangers cannot evict entries.
        self._known: LRUCache[bytes, KnownCertificate] = LRUCache(MAX_KNOWN)

    def find(self, call: InboundCall) -> KnownCertificate | None:
        """Return the certificate of a caller, if it identifies an agent and is valid; else None."""
        shown = self._find_shown(call)
        if shown is None:
            return None
        digest = hashlib.sha256(shown).digest()
        known = self._known.get(digest)
        if known is None:
            known = self._known[digest] = self._read(shown)
        return known if known.identity is not None and known.is_valid(self._clock()) else None

    def still_valid(self, known: KnownCertificate) -> Callable[[], bool]:
        """Return a function that reports whether a certificate has not expired."""
        return partial(self._is_current, known)

    def _is_current(self, known: KnownCertificate) -> bool:
        return known.is_valid(self._clock())

    def _find_shown(self, call: InboundCall) -> bytes | None:
        """Return the certificate that a caller presented, in PEM or DER."""
        if self._origins.is_from_bridge(call):
            sent = call.metadata.get(CERTIFICATE_METADATA_KEY)
            if not isinstance(sent, str) or CERTIFICATE_METADATA_KEY in call.repeated_keys:
                return None
            try:
                return base64.b64decode(sent, altchars=b"-_", validate=True)
            except binascii.Error:
                return None
        # Security: a proxy for other callers presents its own certificate, which must not identify them.
        if BRIDGE_KEY_METADATA_KEY in call.metadata or FORWARDED_FOR_METADATA_KEY in call.metadata:
            return None
        return next(iter(call.context.auth_context().get(PEM_PROPERTY, ())), None)

    def _read(self, shown: bytes) -> KnownCertificate:
        is_pem = shown.startswith(b"-----BEGIN")
        try:
            read = (x509.load_pem_x509_certificate if is_pem else x509.load_der_x509_certificate)(shown)
            uris, names = read_alternative_names(read)
            common = [str(each.value) for each in read.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
        except ValueError:
            return KnownCertificate(None, 0.0, 0.0)
        found = [
            agent.identity
            for agent in self._agents
            if (agent.uri is not None and agent.uri in uris)
            or (agent.dns is not None and agent.dns in names)
            or (agent.common_name is not None and [agent.common_name] == common)
        ]
        # Fail closed: a certificate with the names of two agents is ambiguous.
        return KnownCertificate(
            found[0] if len(found) == 1 else None,
            read.not_valid_before_utc.timestamp(),
            read.not_valid_after_utc.timestamp(),
        )


def read_alternative_names(certificate: x509.Certificate) -> tuple[Sequence[str], Sequence[str]]:
    """Return the URIs and the DNS names of a certificate's subject. Raises ValueError."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return (), ()
    except x509.DuplicateExtension as error:
        raise ValueError("it has an extension twice") from error
    return (names.get_values_for_type(x509.UniformResourceIdentifier), names.get_values_for_type(x509.DNSName))
