"""The keys that sign checkpoints of the audit trail, and those that verify them: Ed25519."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from cstp_grpc.common.lazy_dataclass import dataclass, field
from cstp_grpc.contract.errors import ConfigError

PEM_BLOCK: Final = re.compile(rb"-----BEGIN PUBLIC KEY-----.*?-----END PUBLIC KEY-----", re.DOTALL)


class SigningKeyFile:
    """The Ed25519 key that signs checkpoints."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self.public_key = key.public_key()
        self.key_id = identify_key(self.public_key)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Load the key in a PEM file. Raises ConfigError."""
        try:
            key = serialization.load_pem_private_key(path.read_bytes(), password=None)
        except OSError as error:
            raise ConfigError(f"audit.signing_key_file: {path} cannot be read: {error.strerror}") from error
        except (ValueError, TypeError) as error:
            raise ConfigError(f"audit.signing_key_file: {path} is not an unencrypted private key in PEM") from error
        if not isinstance(key, Ed25519PrivateKey):
            raise ConfigError(f"audit.signing_key_file: {path} is no Ed25519 key")
        return cls(key)

    @classmethod
    def load_or_create(cls, path: Path) -> Self:
        """Load the key in a PEM file, or make one for its owner alone. Raises ConfigError and OSError."""
        if not path.exists():
            pem = Ed25519PrivateKey.generate().private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
            write_new_file(path, pem)
        return cls.load(path)

    def sign(self, statement: str) -> bytes:
        return self._key.sign(statement.encode())


def write_new_file(path: Path, content: bytes) -> None:
    """Write a file for its owner alone, unless another process has written it meanwhile."""
    draft = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        # A link and no renaming, which would replace the key of a process that was faster.
        with suppress(FileExistsError):
            os.link(draft, path)
    finally:
        draft.unlink()
    folder = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def identify_key(key: Ed25519PublicKey) -> str:
    """Return the id of a key: the SHA-256 of its 32 bytes, in hex."""
    raw = key.public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
    return hashlib.sha256(raw).hexdigest()


def encode_public_key(key: Ed25519PublicKey) -> str:
    return key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo).decode()


@dataclass(frozen=True, slots=True)
class TrustedKeys:
    """The public keys whose signatures count, by their ids."""

    keys: Mapping[str, Ed25519PublicKey] = field(default_factory=dict)

    @classmethod
    def of(cls, keys: Iterable[Ed25519PublicKey]) -> Self:
        return cls({identify_key(key): key for key in keys})

    def find_fault(self, key_id: str, statement: str, signature: bytes) -> str | None:
        key = self.keys.get(key_id)
        if key is None:
            return f"it is signed by the key {key_id[:16]}…, which is not among the given ones"
        try:
            key.verify(signature, statement.encode())
        except InvalidSignature:
            return "its signature is wrong"
        return None


def parse_public_keys(content: bytes) -> Sequence[Ed25519PublicKey]:
    """Parse the Ed25519 keys in PEM of a file. Raises ValueError."""
    keys = [serialization.load_pem_public_key(block) for block in PEM_BLOCK.findall(content)]
    found = [key for key in keys if isinstance(key, Ed25519PublicKey)]
    if not found or len(found) < len(keys):
        raise ValueError("it holds no public Ed25519 key in PEM, or keys of another kind")
    return found
