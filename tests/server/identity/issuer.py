"""An issuer of JWTs, with keys of its own and a server that publishes them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import get_default_algorithms

from tests.http_servers import HttpHandler, serving_http

ISSUER = "https://issuer.example.com/"
AUDIENCE = "cstp"


def make_key(algorithm: str) -> Any:
    """Return a new private key for an algorithm."""
    if algorithm.startswith("ES"):
        return ec.generate_private_key({"ES256": ec.SECP256R1(), "ES384": ec.SECP384R1()}[algorithm])
    if algorithm == "EdDSA":
        return ed25519.Ed25519PrivateKey.generate()
    return rsa.generate_private_key(65537, 2048)


def public_jwk(key: Any, algorithm: str, **members: Any) -> dict[str, Any]:
    """Return the public JWK of a private key."""
    encoded = get_default_algorithms()[algorithm].to_jwk(key.public_key())
    return {**json.loads(encoded if isinstance(encoded, str) else json.dumps(encoded)), **members}


@dataclass
class Issuer:
    """Signs tokens, and publishes what it is told to."""

    published: list[dict[str, Any]] = field(default_factory=list)
    keys: dict[str, tuple[Any, str]] = field(default_factory=dict)
    url: str = ""
    requests: int = 0
    status: int = 200

    def add_key(self, key_id: str, algorithm: str = "ES256", *, publish: bool = True) -> None:
        """Make a key and publish it."""
        key = make_key(algorithm)
        self.keys[key_id] = (key, algorithm)
        if publish:
            self.published = [*self.published, public_jwk(key, algorithm, kid=key_id, use="sig", alg=algorithm)]

    def withdraw(self, key_id: str) -> None:
        """Publish a key no more."""
        self.published = [each for each in self.published if each["kid"] != key_id]

    def document(self) -> bytes:
        """Return the JWK set."""
        return json.dumps({"keys": self.published}).encode()

    def token(self, key_id: str = "one", headers: Mapping[str, Any] | None = None, **claims: Any) -> str:
        """Return a token for an hour; claims that are None are left out."""
        now = int(time.time())
        said = {
            "iss": ISSUER,
            "aud": AUDIENCE,
            "sub": "deployer",
            "iat": now,
            "exp": now + 3600,
            "scope": "cstp:query cstp:check openid",
            **claims,
        }
        key, algorithm = self.keys[key_id]
        return jwt.encode(
            {name: value for name, value in said.items() if value is not None},
            key,
            algorithm=algorithm,
            headers={"kid": key_id, **(headers or {})},
        )


@contextmanager
def serving_issuer() -> Iterator[Issuer]:
    """Serve an issuer with one key for the length of a block."""
    issuer = Issuer()
    issuer.add_key("one")

    class Handler(HttpHandler):
        def answer_get(self) -> None:
            issuer.requests += 1
            self.answer(issuer.status, {"content-type": "application/json"}, issuer.document())

    with serving_http(Handler) as url:
        issuer.url = f"{url}/keys"
        yield issuer
