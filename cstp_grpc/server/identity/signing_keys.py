"""The public keys of an issuer of JWTs: read by URL, kept, and read again when they may have changed."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

import jwt
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

from cstp_grpc.client.http_client import HttpClient
from cstp_grpc.client.http_exchange import HttpProtocolError
from cstp_grpc.common.lazy_dataclass import dataclass, field

logger = logging.getLogger(__name__)

MAX_SET_BYTES: Final = 262_144
"""Largest document with keys. Chosen: a hundred keys with certificates."""
MAX_KEYS: Final = 100
FETCH_SECONDS: Final = 5.0
RETRY_SECONDS: Final = 10.0
"""The least time between two requests for the keys of an issuer, whatever tokens strangers send."""
STALE_SECONDS: Final = 86_400.0
"""Seconds for which keys are used without confirmation by the issuer. Chosen: an issuer may be unreachable for a day,
and a withdrawn key must not stay valid forever."""
MIN_RSA_BITS: Final = 2048
"""NIST SP 800-131A disallows shorter ones."""
KEY_TYPES: Final = frozenset({"RSA", "EC", "OKP"})
"""The key types with public keys. Security: a shared secret (`oct`) in a public document is not secret."""

Keys = Mapping[tuple[str | None, str], Sequence[jwt.PyJWK]]
"""The keys by id and algorithm; keys without an id, and all keys of an algorithm, are under None."""


KeySource = Callable[[], bytes]
"""Returns the document with the keys of an issuer. Raises OSError and HttpProtocolError."""


def fetch_key_document(client: HttpClient, url: str) -> bytes:
    """Return the document at a URL. Raises OSError and HttpProtocolError."""
    answer = client.fetch("GET", urlsplit(url), {"accept": "application/json"}, None, FETCH_SECONDS)
    if answer.status != 200:
        raise HttpProtocolError(f"HTTP {answer.status}")
    return answer.body


@dataclass(slots=True)
class SigningKeys:
    """The keys of one issuer. Calls read them on the event loop, and one thread replaces them as a whole."""

    issuer: str
    source: KeySource
    algorithms: Sequence[str]
    refresh_seconds: float
    clock: Callable[[], float] = time.monotonic
    keys: Keys = field(default_factory=dict)
    generation: int = 0
    """Counts the changes of the keys."""
    _confirmed_at: float | None = None
    _asked_at: float | None = None
    _wanted: bool = False
    _failing: bool = False

    @property
    def is_fresh(self) -> bool:
        """Whether the issuer has confirmed the keys recently enough to use them."""
        return self._confirmed_at is not None and self.clock() - self._confirmed_at <= STALE_SECONDS

    def find(self, key_id: str | None, algorithm: str) -> Sequence[jwt.PyJWK]:
        return self.keys.get((key_id, algorithm), ())

    def request_refresh(self) -> bool:
        """Request a refresh of the keys; return False if they were read a moment ago."""
        if self._asked_at is not None and self.clock() - self._asked_at < RETRY_SECONDS:
            return False
        self._wanted = True
        return True

    def refresh_if_due(self) -> None:
        """Read the keys if that is due or requested; failures are logged once, and the previous keys stay."""
        now = self.clock()
        asked = self._asked_at
        pause = RETRY_SECONDS if self._wanted or self._failing else self.refresh_seconds
        if asked is not None and now - asked < pause:
            return
        self._asked_at = now
        self._wanted = False
        try:
            self._take_over(parse_key_set(self.source(), self.algorithms))
        except (OSError, HttpProtocolError, ValueError) as error:
            if not self._failing:
                logger.warning("the keys of the issuer %s cannot be read: %s", self.issuer, error)
            self._failing = True
        else:
            self._failing = False
            self._confirmed_at = now

    def _take_over(self, found: Mapping[str, tuple[dict[str, Any], Sequence[jwt.PyJWK]]]) -> None:
        keys: dict[tuple[str | None, str], list[jwt.PyJWK]] = {}
        for document, variants in found.values():
            key_id = document.get("kid")
            for key in variants:
                keys.setdefault((None, key.algorithm_name), []).append(key)
                if isinstance(key_id, str):
                    keys.setdefault((key_id, key.algorithm_name), []).append(key)
        self.keys = keys
        # Tokens that the previous keys verified are verified again: a key may have been withdrawn.
        self.generation += 1


def parse_key_set(
    content: bytes, algorithms: Sequence[str]
) -> Mapping[str, tuple[dict[str, Any], Sequence[jwt.PyJWK]]]:
    """Return the usable keys of a JWK set, each with its document and for each algorithm that it may be used with.

    Keys for other purposes or algorithms, and weak keys, are left out. Raises ValueError for other documents.
    """
    try:
        document = json.loads(content)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    listed = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(listed, list) or len(listed) > MAX_KEYS:
        raise ValueError("it is not a JWK set")
    found = {}
    for each in listed:
        if isinstance(each, dict) and is_for_signatures(each):
            variants = [key for algorithm in algorithms if (key := build_key(each, algorithm)) is not None]
            found[json.dumps(each, sort_keys=True)] = (each, variants)
    return found


def is_for_signatures(document: Mapping[str, Any]) -> bool:
    """Return whether a JWK is a public key to verify signatures with."""
    operations = document.get("key_ops")
    return (
        document.get("kty") in KEY_TYPES
        and document.get("use") in (None, "sig")
        and (operations is None or (isinstance(operations, list) and "verify" in operations))
    )


def build_key(document: dict[str, Any], algorithm: str) -> jwt.PyJWK | None:
    """Return a key for an algorithm; None if the key is for another algorithm, or too weak."""
    if document.get("alg") not in (None, algorithm):
        return None
    try:
        key = jwt.PyJWK(document, algorithm=algorithm)
        # A key of another type can be built; only preparing it fails.
        key.Algorithm.prepare_key(key.key)
    except (jwt.PyJWTError, ValueError, TypeError):
        return None
    if isinstance(key.key, RSAPublicKey) and key.key.key_size < MIN_RSA_BITS:
        return None
    return key
