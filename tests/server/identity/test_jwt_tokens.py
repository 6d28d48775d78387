"""JWTs of issuers: which are accepted, whom they identify, and how keys are followed."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Mapping
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st

from cstp_grpc.client.http_exchange import HttpProtocolError
from cstp_grpc.contract.enums import Permission
from cstp_grpc.contract.errors import Unavailable
from cstp_grpc.core.tokens.model import TokenIdentity, token_digest
from cstp_grpc.server.identity.jwt_tokens import (
    DEFAULT_SCOPES,
    ClaimMapping,
    JwtIssuer,
    JwtVerifier,
    VerifiedJwt,
    find_claim,
)
from cstp_grpc.server.identity.signing_keys import RETRY_SECONDS, STALE_SECONDS, SigningKeys, parse_key_set
from tests.server.identity.issuer import AUDIENCE, ISSUER, Issuer, make_key, public_jwk

ALGORITHMS = ("RS256", "ES256", "EdDSA")
DEPLOYER = TokenIdentity("deployer", frozenset({Permission.QUERY, Permission.CHECK}), "default")


class Kit:
    """A verifier of one issuer, whose clock tests set."""

    def __init__(self, algorithms: tuple[str, ...] = ALGORITHMS, **mapping: Any) -> None:
        self.issuer = Issuer()
        self.issuer.add_key("one")
        self.seconds = 1000.0
        self.now: float | None = None
        self.wakes = 0
        self.failing = False
        self.keys = SigningKeys(ISSUER, self._read, algorithms, 300.0, lambda: self.seconds)
        said: dict[str, Any] = {
            "agent": "sub",
            "agent_prefix": "",
            "tenant_claim": None,
            "tenant": "default",
            "permissions_claim": "scope",
            "permissions": DEFAULT_SCOPES,
        }
        issuer = JwtIssuer(
            ISSUER,
            [AUDIENCE, "other"],
            frozenset(algorithms),
            30.0,
            ClaimMapping(**{**said, **mapping}),
            self.keys,
            configured_agents=frozenset({"configured", "shared"}),
        )

        self.verifier = JwtVerifier(
            [issuer],
            {"configured": "other", "shared": "default", "administrator": "default"},
            self._wake,
            lambda: time.time() if self.now is None else self.now,
        )
        self.keys.refresh_if_due()

    def _read(self) -> bytes:
        self.issuer.requests += 1
        if self.failing:
            raise OSError("no route")
        return self.issuer.document()

    def _wake(self) -> None:
        self.wakes += 1

    def find(self, token: str) -> VerifiedJwt | None:
        return self.verifier.find(token, token_digest(token))

    def identity(self, token: str) -> TokenIdentity | None:
        found = self.find(token)
        return None if found is None else found.identity


@pytest.fixture
def kit() -> Kit:
    return Kit()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_token_that_a_published_key_has_signed_identifies_its_agent(algorithm: str) -> None:
    kit = Kit()
    kit.issuer.add_key("two", algorithm)
    kit.seconds += 300
    kit.keys.refresh_if_due()
    token = kit.issuer.token("two")
    assert kit.identity(token) == DEPLOYER
    assert kit.identity(token) == DEPLOYER


def test_a_token_names_an_agent_of_the_settings_if_its_issuer_may(kit: Kit) -> None:
    identity = kit.identity(kit.issuer.token(sub="shared"))
    assert identity is not None
    assert identity.name == "shared"


REFUSED: Mapping[str, Callable[[Issuer], str]] = {
    "another issuer": lambda issuer: issuer.token(iss="https://other.example.com/"),
    "no issuer": lambda issuer: issuer.token(iss=None),
    "another audience": lambda issuer: issuer.token(aud="somebody"),
    "no audience": lambda issuer: issuer.token(aud=None),
    "no end": lambda issuer: issuer.token(exp=None),
    "ended": lambda issuer: issuer.token(exp=1),
    "an end that is no number": lambda issuer: issuer.token(exp="soon"),
    "an end beyond numbers": lambda issuer: issuer.token(exp=float("inf")),
    "an end of hundreds of digits": lambda issuer: issuer.token(exp=10**400),
    "not yet": lambda issuer: issuer.token(nbf=4_000_000_000),
    "made in the future": lambda issuer: issuer.token(iat=4_000_000_000),
    "no agent": lambda issuer: issuer.token(sub=None),
    "an empty agent": lambda issuer: issuer.token(sub=""),
    "a reserved agent": lambda issuer: issuer.token(sub="intent-layer"),
    "a long agent": lambda issuer: issuer.token(sub="a" * 201),
    "an agent with a control character": lambda issuer: issuer.token(sub="a\nb"),
    "an agent of another tenant": lambda issuer: issuer.token(sub="configured"),
    "an agent of the settings": lambda issuer: issuer.token(sub="administrator"),
    "an agent like one of the settings": lambda issuer: issuer.token(sub="Administrator"),
    "an agent with letters like those of one": lambda issuer: issuer.token(sub="\u0430dministrator"),
    "a critical extension": lambda issuer: issuer.token(headers={"crit": ["exp"]}),
    "too long": lambda issuer: issuer.token(more="a" * 9000),
    "no signature": lambda issuer: issuer.token().rpartition(".")[0] + ".",
    "another signature": lambda issuer: issuer.token().rpartition(".")[0] + "." + issuer.token(more=1).split(".")[2],
    "another content": lambda issuer: swap_payload(issuer.token(), issuer.token(sub="admin")),
    "no algorithm": lambda issuer: jwt.encode(json.loads(payload_of(issuer.token())), "", algorithm="none"),
    "two parts": lambda issuer: ".".join(issuer.token().split(".")[:2]),
    "nested too deeply": lambda _: f"{encoded(b'[' * 3000)}.{encoded(b'[' * 3000)}.AAAA",
    "no JSON": lambda _: f"{encoded(b'x')}.{encoded(b'x')}.AAAA",
    "a list for an algorithm": lambda issuer: with_header(issuer.token(), b'{"alg": ["RS256"]}'),
    "an object for an algorithm": lambda issuer: with_header(issuer.token(), b'{"alg": {}}'),
    "no objects": lambda _: f"{encoded(b'[]')}.{encoded(b'[]')}.AAAA",
}


def encoded(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).decode().rstrip("=")


def payload_of(token: str) -> bytes:
    part = token.split(".")[1]
    return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))


def with_header(token: str, header: bytes) -> str:
    return f"{encoded(header)}.{token.partition('.')[2]}"


def swap_payload(token: str, other: str) -> str:
    header, _, signature = token.split(".")
    return f"{header}.{other.split('.')[1]}.{signature}"


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_any_other_token_is_refused(kit: Kit, name: str) -> None:
    assert kit.find(REFUSED[name](kit.issuer)) is None


def test_the_algorithm_must_be_allowed_and_that_of_the_key() -> None:
    kit = Kit(algorithms=("RS256",))
    assert kit.find(kit.issuer.token()) is None
    # The public key as a shared secret: the classic confusion of algorithms.
    kit = Kit()
    kit.issuer.add_key("two", "RS256")
    kit.seconds += 300
    kit.keys.refresh_if_due()
    public = jwt.PyJWK(kit.issuer.published[-1]).key

    secret = encoded(public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo))
    claims = json.loads(payload_of(kit.issuer.token("two")))
    forged = jwt.encode(claims, secret, algorithm="HS256", headers={"kid": "two"})
    assert kit.find(forged) is None


def test_a_token_ends_with_its_leeway_also_if_it_was_verified_before(kit: Kit) -> None:
    token = kit.issuer.token()
    found = kit.find(token)
    assert found is not None
    is_valid = kit.verifier.still_valid(found)
    kit.now = found.expires_at - 0.5
    assert kit.find(token) is found
    assert is_valid()
    kit.now = found.expires_at
    assert kit.find(token) is None
    assert not is_valid()


def test_a_new_key_is_read_when_a_token_has_it(kit: Kit) -> None:
    kit.seconds += RETRY_SECONDS
    kit.issuer.add_key("two")
    token = kit.issuer.token("two")
    with pytest.raises(Unavailable) as raised:
        kit.find(token)
    assert raised.value.retry_after == 1.0
    assert kit.wakes == 1
    kit.keys.refresh_if_due()
    assert kit.identity(token) == DEPLOYER


def test_strangers_cannot_have_the_keys_read_again_and_again(kit: Kit) -> None:
    kit.seconds += RETRY_SECONDS
    kit.issuer.add_key("unknown", publish=False)
    token = kit.issuer.token("unknown")
    before = kit.issuer.requests
    with pytest.raises(Unavailable):
        kit.find(token)
    kit.keys.refresh_if_due()
    for _ in range(5):
        assert kit.find(token) is None
        kit.keys.refresh_if_due()
    assert kit.issuer.requests == before + 1


def test_a_withdrawn_key_ends_its_tokens(kit: Kit) -> None:
    token = kit.issuer.token()
    assert kit.identity(token) == DEPLOYER
    kit.issuer.add_key("two")
    kit.issuer.withdraw("one")
    kit.seconds += 300
    kit.keys.refresh_if_due()
    assert kit.find(token) is None
    assert kit.identity(kit.issuer.token("two")) == DEPLOYER


def test_keys_outlast_an_issuer_that_is_away_for_a_while(kit: Kit, caplog: pytest.LogCaptureFixture) -> None:
    token = kit.issuer.token()
    kit.failing = True
    for _ in range(3):
        kit.seconds += 300
        kit.keys.refresh_if_due()
    assert kit.identity(token) == DEPLOYER
    assert len(caplog.records) == 1
    kit.seconds += STALE_SECONDS
    with pytest.raises(Unavailable):
        kit.find(token)
    kit.failing = False
    kit.seconds += RETRY_SECONDS
    kit.keys.refresh_if_due()
    assert kit.identity(token) == DEPLOYER


def test_before_the_keys_are_known_nobody_is_refused_for_good() -> None:
    kit = Kit()
    kit.keys = SigningKeys(ISSUER, kit._read, ALGORITHMS, 300.0, lambda: kit.seconds)
    issuer = JwtIssuer(
        ISSUER,
        [AUDIENCE],
        frozenset(ALGORITHMS),
        0.0,
        ClaimMapping("sub", "", None, "default", "scope", DEFAULT_SCOPES),
        kit.keys,
    )
    kit.verifier = JwtVerifier([issuer], {}, lambda: None)
    with pytest.raises(Unavailable):
        kit.find(kit.issuer.token())


def test_claims_say_who_and_what() -> None:
    kit = Kit(
        agent="https://example.com/agent",
        agent_prefix="corp/",
        tenant_claim="org.id",
        permissions_claim="realm_access.roles",
        permissions={"ops": frozenset({Permission.ADMIN, Permission.QUERY}), "qa": frozenset({Permission.REVIEW})},
    )
    claims: dict[str, Any] = {
        "https://example.com/agent": "ada",
        "org": {"id": "acme"},
        "realm_access": {"roles": ["ops", "qa", 1]},
    }
    assert kit.identity(kit.issuer.token(**claims)) == TokenIdentity(
        "corp/ada", frozenset({Permission.ADMIN, Permission.QUERY, Permission.REVIEW}), "acme"
    )
    # A tenant that a claim should name, and does not, is none.
    assert kit.find(kit.issuer.token(**{**claims, "org": None})) is None
    assert kit.identity(kit.issuer.token(**{**claims, "realm_access": "x"})) == TokenIdentity(
        "corp/ada", frozenset(), "acme"
    )


def test_only_strong_public_keys_for_signatures_are_taken() -> None:
    strong = make_key("RS256")
    weak = rsa.generate_private_key(65537, 1024)
    usable = public_jwk(strong, "RS256", kid="usable")
    others: list[Any] = [
        public_jwk(weak, "RS256", kid="weak"),
        public_jwk(strong, "RS256", kid="enc", use="enc"),
        public_jwk(strong, "RS256", kid="ops", key_ops=["encrypt"]),
        public_jwk(strong, "RS256", kid="alg", alg="RS512"),
        {"kty": "oct", "k": encoded(b"x" * 32), "kid": "secret"},
        {"kty": "RSA", "kid": "broken", "n": "AQ", "e": "!"},
        {"kty": "EC", "crv": "P-256", "x": "AQ", "y": "AQ"},
        "text",
        None,
    ]
    found = parse_key_set(json.dumps({"keys": [usable, *others]}).encode(), ["RS256", "PS256", "ES256"])
    algorithms = {document["kid"]: [key.algorithm_name for key in keys] for document, keys in found.values() if keys}
    assert algorithms == {"usable": ["RS256", "PS256"]}


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{}", b'{"keys": {}}', b"[" * 100_000, json.dumps({"keys": [1] * 101}).encode()]
)
def test_what_is_no_key_set_replaces_nothing(kit: Kit, content: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_key_set(content, ALGORITHMS)
    kit.issuer.document = lambda: content  # type: ignore[method-assign]
    kit.seconds += 300
    kit.keys.refresh_if_due()
    assert kit.identity(kit.issuer.token()) == DEPLOYER


@given(st.text(max_size=200) | st.binary(max_size=100).map(lambda raw: f"{encoded(raw)}.{encoded(raw)}.{encoded(raw)}"))
def test_no_text_is_taken_for_a_token(text: str) -> None:
    assert FUZZED.find(text) is None


FUZZED = Kit()


@pytest.mark.parametrize(
    ("path", "found"), [("a", 1), ("b.c", 2), ("x.y", 3), ("b.c.d", None), ("missing", None), ("b", {"c": 2})]
)
def test_a_claim_is_found_by_its_path(path: str, found: object) -> None:
    assert find_claim({"a": 1, "b": {"c": 2}, "x.y": 3}, path) == found


def test_a_source_may_fail_as_http_does(kit: Kit) -> None:
    def fail() -> bytes:
        raise HttpProtocolError("HTTP 500")

    kit.keys.source = fail
    kit.seconds += 300
    kit.keys.refresh_if_due()
    assert kit.identity(kit.issuer.token()) == DEPLOYER
