"""Callers that are identified by JWTs: signature, issuer, audience and times, and the agent that the claims name."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import jwt
from cachetools import LRUCache

from cstp_grpc.common.confusable_names import NameIndex
from cstp_grpc.common.lazy_dataclass import dataclass
from cstp_grpc.contract.enums import SERVER_AGENTS, Permission
from cstp_grpc.contract.errors import Unavailable
from cstp_grpc.core.tokens.model import TokenIdentity, is_name
from cstp_grpc.server.identity.signing_keys import SigningKeys

MAX_CHARACTERS: Final = 8192
"""Maximum length of a JWT; gRPC accepts no more metadata by default."""
MAX_VERIFIED: Final = 4096
"""Maximum number of verified tokens in the cache. Chosen: more than agents call at a time, and some megabytes."""
SCOPE_PREFIX: Final = "cstp:"


@dataclass(frozen=True, slots=True)
class ClaimMapping:
    """The claims with an agent's identity and permissions."""

    agent: str
    agent_prefix: str
    tenant_claim: str | None
    tenant: str
    permissions_claim: str
    permissions: Mapping[str, frozenset[Permission]]

    def identify(self, claims: Mapping[str, Any]) -> TokenIdentity | None:
        agent = find_claim(claims, self.agent)
        tenant = self.tenant if self.tenant_claim is None else find_claim(claims, self.tenant_claim)
        if not isinstance(agent, str) or not agent or not is_name(tenant):
            return None
        name = self.agent_prefix + agent
        if not is_name(name) or name in SERVER_AGENTS:
            return None
        return TokenIdentity(name, self._permissions(find_claim(claims, self.permissions_claim)), str(tenant))

    def _permissions(self, granted: object) -> frozenset[Permission]:
        values = granted.split() if isinstance(granted, str) else granted if isinstance(granted, list) else []
        return frozenset().union(*(self.permissions.get(each, ()) for each in values if isinstance(each, str)))


DEFAULT_SCOPES: Final = {SCOPE_PREFIX + permission: frozenset({permission}) for permission in Permission}
"""The default permissions of scopes: `cstp:query` grants `query`."""


def find_claim(claims: Mapping[str, Any], path: str) -> object:
    """Return the claim at a path, or None; a claim whose name has dots, as URLs have, is found by its whole name."""
    if path in claims:
        return claims[path]
    found: object = claims
    for name in path.split("."):
        if not isinstance(found, Mapping):
            return None
        found = found.get(name)
    return found


@dataclass(frozen=True, slots=True)
class JwtIssuer:
    """An issuer: the requirements for its tokens, and its keys."""

    name: str
    audience: Sequence[str]
    algorithms: frozenset[str]
    leeway: float
    mapping: ClaimMapping
    keys: SigningKeys
    configured_agents: frozenset[str] = frozenset()
    """The agents of the settings that its tokens may name."""


@dataclass(frozen=True, slots=True)
class VerifiedJwt:
    """The agent of a JWT, its expiry, and the version of the issuer's keys that verified it."""

    identity: TokenIdentity
    expires_at: float
    issuer: JwtIssuer
    generation: int


class JwtVerifier:
    """Identifies callers by JWTs of some issuers. For one event loop.

    `tenants` are those of agents in the settings: a JWT names such an agent only if its issuer may, and then must be of
    the same tenant. `wake` has wanted keys read soon.
    """

    def __init__(
        self,
        issuers: Sequence[JwtIssuer],
        tenants: Mapping[str, str],
        wake: Callable[[], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._issuers = {issuer.name: issuer for issuer in issuers}
        self._tenants = tenants
        self._names = NameIndex(tenants)
        self._wake = wake
        self._clock = clock
        # Only verified tokens are cached, so that wrong tokens cannot evict entries.
        self._verified: LRUCache[bytes, VerifiedJwt] = LRUCache(MAX_VERIFIED)

    def find(self, token: str, digest: bytes) -> VerifiedJwt | None:
        """Return the agent of a JWT with this digest; None if the token is not an accepted JWT.

        Raises Unavailable while the keys of its issuer are unknown.
        """
        known = self._verified.get(digest)
        if known is None or known.generation != known.issuer.keys.generation:
            known = self._verify(token)
            if known is None:
                return None
            self._verified[digest] = known
        if not known.issuer.keys.is_fresh:
            self._request_keys(known.issuer)
            raise keys_unknown_error()
        return known if self.is_current(known) else None

    def is_current(self, verified: VerifiedJwt) -> bool:
        return self._clock() < verified.expires_at

    def still_valid(self, verified: VerifiedJwt) -> Callable[[], bool]:
        """Return a function that reports whether a JWT has not expired."""
        return partial(self.is_current, verified)

    def _verify(self, token: str) -> VerifiedJwt | None:
        if len(token) > MAX_CHARACTERS or token.count(".") != 2:
            return None
        try:
            header = jwt.get_unverified_header(token)
            # Read to choose the issuer; whether it has signed this is verified below, by its keys alone.
            claimed = jwt.decode(token, options={"verify_signature": False})
        except (jwt.PyJWTError, ValueError, RecursionError):
            return None
        issuer = self._issuers.get(claimed["iss"]) if isinstance(claimed.get("iss"), str) else None
        algorithm, key_id = header.get("alg"), header.get("kid")
        # Security: extensions that must be understood (RFC 7515, section 4.1.11) are not; nor are keys in the token.
        if issuer is None or "crit" in header or "b64" in header or not isinstance(key_id, str | None):
            return None
        # Strangers choose the value: a list or an object could not even be looked up.
        if not isinstance(algorithm, str) or algorithm not in issuer.algorithms:
            return None
        keys = issuer.keys.find(key_id, algorithm)
        if not keys or not issuer.keys.is_fresh:
            if self._request_keys(issuer) or not issuer.keys.is_fresh:
                # It may be a key that the issuer has published since; the caller tries again a moment later.
                raise keys_unknown_error()
            return None
        generation = issuer.keys.generation
        for key in keys:
            if (claims := self._decode(token, issuer, key)) is not None:
                return self._identify(claims, issuer, generation)
        return None

    def _decode(self, token: str, issuer: JwtIssuer, key: jwt.PyJWK) -> dict[str, Any] | None:
        """Return the claims of a token if a key has signed them and they are for this server now."""
        try:
            claims: dict[str, Any] = jwt.decode(
                token,
                key,
                algorithms=[key.algorithm_name],
                audience=list(issuer.audience),
                issuer=issuer.name,
                leeway=issuer.leeway,
                options={"require": ["exp", "iss", "aud"], "verify_iat": True},
            )
        except (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError):
            return None
        return claims

    def _identify(self, claims: Mapping[str, Any], issuer: JwtIssuer, generation: int) -> VerifiedJwt | None:
        identity = issuer.mapping.identify(claims)
        if identity is None:
            return None
        configured = self._tenants.get(identity.name)
        # Security: otherwise an issuer could name a caller like an agent with more permissions.
        if configured is None and self._names.find_lookalike(identity.name) is not None:
            return None
        if configured is not None and (identity.name not in issuer.configured_agents or configured != identity.tenant):
            return None
        try:
            ends_at = float(claims["exp"]) + issuer.leeway
        except OverflowError:
            # The library accepts whole numbers with hundreds of digits.
            return None
        return VerifiedJwt(identity, ends_at, issuer, generation)

    def _request_keys(self, issuer: JwtIssuer) -> bool:
        """Request a refresh of an issuer's keys; return False if they were read a moment ago."""
        wanted = issuer.keys.request_refresh()
        if wanted:
            self._wake()
        return wanted


def keys_unknown_error() -> Unavailable:
    return Unavailable("the keys of the token's issuer are being read; try again", retry_after=1.0)
