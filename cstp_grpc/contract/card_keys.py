"""Keys that sign agent cards and verify their signatures: JSON Web Signature (RFC 7515) by PyJWT."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol, Self, TypeAlias

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey, EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, RSAPublicKey
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm
from jwt.utils import base64url_encode
from pydantic import SecretStr

from cstp_grpc.common.lazy_dataclass import dataclass
from cstp_grpc.contract.errors import ConfigError

PrivateKey: TypeAlias = EllipticCurvePrivateKey | RSAPrivateKey | Ed25519PrivateKey
VerifyingKey: TypeAlias = EllipticCurvePublicKey | RSAPublicKey | Ed25519PublicKey

MIN_RSA_BITS: Final = 2048
"""The minimum for RS256 and its relatives, RFC 7518, section 3.3."""
MAX_KEYS: Final = 16
"""Maximum number of keys in a file: each is tried on each signature."""
CURVE_ALGORITHMS: Final[Mapping[str, str]] = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}
"""The one algorithm for keys of each curve, RFC 7518, section 3.4; the names of curves are those of `cryptography`."""
RSA_ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
EDDSA: Final = "EdDSA"
"""RFC 8037, section 3.1."""
SUPPORTED_KEYS: Final = (
    f"an EC key (P-256, P-384, P-521), an RSA key of at least {MIN_RSA_BITS} bits, or an Ed25519 key"
)
PEM_BLOCK: Final = re.compile(rb"-----BEGIN ([A-Z0-9 ]+)-----.*?-----END \1-----", re.DOTALL)
BASE64URL: Final = re.compile(r"[A-Za-z0-9_-]+")
THUMBPRINT_MEMBERS: Final = frozenset({"crv", "e", "kty", "n", "x", "y"})
"""The required members of all key types, RFC 7638, section 3.2, and RFC 8037, section 2."""

jws: Final = jwt.PyJWS()


class UnusableKey(ValueError):
    """A key cannot be used for agent cards; the message gives the reason and quotes nothing of the key."""


class SigningKeySource(Protocol):
    """The settings that name the signing key: exactly one of `key` and `key_file` is set."""

    @property
    def key(self) -> SecretStr | None:
        """The key itself, in PEM."""

    @property
    def key_file(self) -> Path | None:
        """A file with the key, in PEM."""

    @property
    def key_id(self) -> str | None:
        """The key id (`kid`) that verifiers use."""


class SigningKey:
    """A private key that signs agent cards."""

    def __init__(self, pem: bytes, key_id: str | None) -> None:
        try:
            loaded = serialization.load_pem_private_key(pem, password=None)
        except (ValueError, TypeError) as error:
            raise UnusableKey("is not a private key in PEM without a password") from error
        if not isinstance(loaded, PrivateKey):
            raise UnusableKey(f"is not one of the keys that can sign: {SUPPORTED_KEYS}")
        self._key: PrivateKey = loaded
        self.public_key = PublicKey.from_key(loaded.public_key())
        """The public key that verifies its signatures."""
        self._algorithm = self.public_key.algorithms[0]
        self.thumbprint = self.public_key.thumbprint
        """The thumbprint of the public key, RFC 7638."""
        self.key_id = key_id or self.thumbprint
        """The key id (`kid`) in its signatures."""

    @classmethod
    def load(cls, source: SigningKeySource | None, setting: str) -> Self | None:
        """Load the key that the settings name. Return None without settings. Raises ConfigError, which names the
        setting.
        """
        if source is None:
            return None
        if source.key_file is None:
            assert source.key is not None, "the settings demand one of the two"
            name, content, what = "key", source.key.get_secret_value().encode(), "it"
        else:
            name, what = "key_file", str(source.key_file)
            try:
                content = source.key_file.read_bytes()
            except OSError as error:
                raise ConfigError(f"{setting}.{name}: {what} cannot be read: {error.strerror}") from error
        try:
            return cls(content, source.key_id)
        except UnusableKey as error:
            raise ConfigError(f"{setting}.{name}: {what} {error}") from error

    def sign(self, payload: bytes) -> dict[str, str]:
        """Sign a payload and return an AgentCardSignature without the payload."""
        # A signature with a detached payload, RFC 7515, appendix F: an AgentCardSignature carries the other two parts.
        token = jws.encode(payload, self._key, self._algorithm, headers={"typ": "JOSE", "kid": self.key_id})
        protected, _, signature = token.split(".")
        return {"protected": protected, "signature": signature}


@dataclass(frozen=True, slots=True)
class PublicKey:
    """A key that verifies signatures."""

    key: VerifyingKey
    algorithms: Sequence[str]
    """The accepted algorithms for its signatures; the first is used for signing."""
    thumbprint: str
    """Its thumbprint, RFC 7638."""

    @classmethod
    def from_key(cls, key: object) -> Self:
        """Build a public key from a key object of the library. Raises UnusableKey."""
        if isinstance(key, EllipticCurvePublicKey) and key.curve.name in CURVE_ALGORITHMS:
            return cls(
                key, (CURVE_ALGORITHMS[key.curve.name],), compute_thumbprint(ECAlgorithm.to_jwk(key, as_dict=True))
            )
        if isinstance(key, RSAPublicKey) and key.key_size >= MIN_RSA_BITS:
            return cls(key, RSA_ALGORITHMS, compute_thumbprint(RSAAlgorithm.to_jwk(key, as_dict=True)))
        if isinstance(key, Ed25519PublicKey):
            return cls(key, (EDDSA,), compute_thumbprint(OKPAlgorithm.to_jwk(key, as_dict=True)))
        raise UnusableKey(f"is not one of the keys that can be used: {SUPPORTED_KEYS}")

    def verifies(self, protected: object, payload: bytes, signature: object) -> bool:
        """Return whether this key made the signature of a payload."""
        if not is_base64url(protected) or not is_base64url(signature):
            return False
        # Both are checked above: with a dot in one of them, another part could be read as the payload. The algorithms
        # follow from the type of the key, never from the header, which an attacker writes (RFC 8725, section 3.1).
        token = f"{protected}.{base64url_encode(payload).decode()}.{signature}"
        try:
            jws.decode(token, self.key, algorithms=self.algorithms)
        except jwt.PyJWTError:
            return False
        return True


def is_base64url(value: object) -> bool:
    """Return whether a value is base64url text, which cannot contain the separators of a JWS."""
    return isinstance(value, str) and BASE64URL.fullmatch(value) is not None


def compute_thumbprint(jwk: Mapping[str, Any]) -> str:
    """Compute the thumbprint of a public key, RFC 7638."""
    # Section 3 prescribes this JSON to the byte: required members only, sorted, without whitespace.
    members = {name: value for name, value in jwk.items() if name in THUMBPRINT_MEMBERS}
    text = json.dumps(members, separators=(",", ":"), sort_keys=True)
    return base64url_encode(hashlib.sha256(text.encode()).digest()).decode()


def read_public_keys(content: bytes) -> list[PublicKey]:
    """Parse the keys of a file: public keys in PEM, a JSON Web Key or a JSON Web Key Set.

    Several keys allow for key rotation. Raises UnusableKey.
    """
    keys = parse_json_web_keys(content) if content.lstrip().startswith(b"{") else parse_pem_keys(content)
    if not keys or len(keys) > MAX_KEYS:
        raise UnusableKey(f"holds {len(keys) or 'no'} public keys in PEM or as JSON Web Keys; 1 to {MAX_KEYS} may be")
    return keys


def parse_pem_keys(content: bytes) -> list[PublicKey]:
    """Parse the public keys in PEM blocks. Raises UnusableKey."""
    keys = []
    for block in PEM_BLOCK.finditer(content):
        # Files of public keys are handed out: a private key in one is a mistake that must not go unnoticed.
        if b"PRIVATE" in block[1]:
            raise UnusableKey("holds a private key, and only the public one belongs there")
        try:
            key = serialization.load_pem_public_key(block[0])
        except ValueError as error:
            raise UnusableKey("holds a PEM block that is no public key") from error
        keys.append(PublicKey.from_key(key))
    return keys


def parse_json_web_keys(content: bytes) -> list[PublicKey]:
    """Parse a JSON Web Key or a JSON Web Key Set. Raises UnusableKey."""
    try:
        document = json.loads(content)
        entries = document.get("keys", [document])
        keys = [(entry, jwt.PyJWK(entry).key) for entry in entries]
    except (ValueError, TypeError, AttributeError, RecursionError, jwt.PyJWTError) as error:
        raise UnusableKey("holds an invalid JSON Web Key") from error
    # `d` is the private member of all key types that can sign, RFC 7518, section 6.
    if any("d" in entry for entry, _ in keys):
        raise UnusableKey("holds a private key, and only the public one belongs there")
    return [PublicKey.from_key(key) for _, key in keys]
