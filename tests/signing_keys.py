"""Keys that sign agent cards, made for a test."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

from a2a.client.card_resolver import parse_agent_card
from a2a.utils.signing import ProtectedHeader, create_agent_card_signer
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

KINDS: dict[str, Callable[[], ec.EllipticCurve]] = {"ES256": ec.SECP256R1, "ES384": ec.SECP384R1, "ES512": ec.SECP521R1}
Private = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | ed25519.Ed25519PrivateKey


def make_key(algorithm: str = "ES256") -> Private:
    """Return a new private key for an algorithm."""
    if algorithm == "EdDSA":
        return ed25519.Ed25519PrivateKey.generate()
    if algorithm == "RS256":
        return rsa.generate_private_key(65537, 2048)
    return ec.generate_private_key(KINDS[algorithm]())


def private_pem(key: Private) -> str:
    """Return a private key as settings take it."""
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


def public_pem(key: Private) -> str:
    """Return the public key of a private one."""
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()


def write_keys(folder: Path, algorithm: str = "ES256", name: str = "card") -> tuple[Path, Path]:
    """Write a new key and return the files with its private and its public part."""
    key = make_key(algorithm)
    private, public = folder / f"{name}.key", folder / f"{name}.pub"
    private.write_text(private_pem(key))
    public.write_text(public_pem(key))
    return private, public


def sign_card(content: dict[str, Any], key: Private) -> dict[str, Any]:
    """Return a card of A2A 1.0 with a signature by the official Python client."""
    header: ProtectedHeader = {"kid": "test", "alg": "ES256", "jku": None, "typ": "JOSE"}
    signed = create_agent_card_signer(private_pem(key), header)(parse_agent_card(copy.deepcopy(content)))
    [signature] = signed.signatures
    return {**content, "signatures": [{"protected": signature.protected, "signature": signature.signature}]}
