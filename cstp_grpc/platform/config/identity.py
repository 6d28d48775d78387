"""Settings of callers: their tokens, JWTs of issuers, and client certificates."""

from __future__ import annotations

import re
from itertools import permutations
from pathlib import Path
from typing import Annotated, Final, Literal
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator, model_validator

from cstp_grpc.common.confusable_names import NameIndex
from cstp_grpc.contract.call_origin import MIN_BRIDGE_KEY_CHARACTERS
from cstp_grpc.contract.enums import DEFAULT_TENANT, INTENT_LAYER_AGENT, LIAISON_SUPERVISOR, Permission
from cstp_grpc.platform.config.environment import is_loopback
from cstp_grpc.platform.config.settings_section import URL, AgentName, SettingsSection

Algorithm = Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]
"""The algorithms of RFC 7518 and RFC 8037 with public keys. Algorithms with shared secrets are left out, because a
verifier could forge tokens."""
ClaimPath = Annotated[str, Field(min_length=1, max_length=200)]


class JwtIssuerSettings(SettingsSection):
    """An issuer of JWTs, such as an OpenID provider, whose tokens identify agents."""

    issuer: str = Field(min_length=1, max_length=500)
    """The exact value of `iss`."""
    audience: list[Annotated[str, Field(min_length=1, max_length=500)]] = Field(min_length=1)
    """The names of this server at the issuer; `aud` must contain one of them."""
    jwks_url: str = Field(pattern=URL)
    """The URL of the issuer's keys (RFC 7517): `https`, or `http` on this machine."""
    ca_file: Path | None = None
    """A PEM file of trusted CA certificates for that URL, instead of the system's."""
    algorithms: list[Algorithm] = Field(default=["RS256", "ES256", "EdDSA"], min_length=1)
    """The accepted algorithms. Only keys of the token's algorithm are tried."""
    agent_claim: ClaimPath = "sub"
    """The claim with the agent's name; `.` separates members of nested objects."""
    agent_prefix: str = Field(default="", max_length=100)
    """A prefix of the agent's name, such as `corp/`, so that the name cannot be that of another issuer's agent. With
    several issuers, each needs a prefix, and no prefix may begin with another."""
    configured_agents: list[AgentName] = []
    """Agents of `auth.tokens` and `auth.certificates` that this issuer's tokens may also identify, prefix included.
    Tokens for other agents of these lists are refused."""
    tenant_claim: ClaimPath | None = None
    """The claim with the agent's tenant; tokens without it are refused. [default: all agents belong to `tenant`]"""
    tenant: str = Field(default=DEFAULT_TENANT, min_length=1, max_length=200)
    """The tenant of all agents if there is no `tenant_claim`."""
    permissions_claim: ClaimPath = "scope"
    """The claim with the agent's permissions: a list, or words separated by spaces."""
    permissions: dict[str, list[Permission]] = {}
    """The permissions that each value of that claim grants; other values grant nothing. [default: `cstp:query` grants
    `query`, and so on for each permission]"""
    leeway_seconds: float = Field(default=30.0, ge=0, le=300)
    """The maximum difference between the clocks of the issuer and of this server."""
    refresh_seconds: float = Field(default=300.0, ge=10, le=86_400)
    """How often the keys are read. A token with an unknown key triggers a read immediately, at most every ten seconds.
    """
    discovery_url: str | None = Field(default=None, pattern=URL)
    """The URL of the OpenID Connect discovery document, for the agent card."""
    token_url: str | None = Field(default=None, pattern=URL)
    """The URL where agents get tokens with OAuth 2.0 client credentials, for the agent card."""

    @field_validator("jwks_url")
    @classmethod
    def check_jwks_url(cls, url: str) -> str:
        """Reject an address at which others could answer with keys of their own."""
        parts = urlsplit(url)
        if parts.scheme != "https" and not is_loopback(parts.hostname or ""):
            raise ValueError("keys would come unprotected: it must begin with https, or name this machine")
        return url


class CertificateAgentSettings(SettingsSection):
    """An agent that is identified by its client certificate, if it sends no token."""

    name: AgentName
    """The agent's name."""
    uri: str | None = Field(default=None, min_length=1, max_length=500)
    """A URI in the certificate's subject alternative names, such as `spiffe://example.com/deployer`."""
    dns: str | None = Field(default=None, min_length=1, max_length=253)
    """A DNS name in its subject alternative names."""
    common_name: str | None = Field(default=None, min_length=1, max_length=200)
    """The common name of its subject. If the certificate has alternative names, match those instead."""
    permissions: frozenset[Permission] = frozenset({Permission.QUERY, Permission.CHECK})
    """The agent's permissions: query, check, announce, record, review, admin, converse, route, erase, approve,
    oversee."""
    tenant: str = Field(default=DEFAULT_TENANT, min_length=1, max_length=200)
    """The tenant whose chat sessions the agent sees."""

    @model_validator(mode="after")
    def check_match(self) -> CertificateAgentSettings:
        if sum(each is not None for each in (self.uri, self.dns, self.common_name)) != 1:
            raise ValueError("exactly one of uri, dns and common_name must be given")
        return self


EXPECTED_PERMISSIONS: Final = {
    Permission.ANNOUNCE: "announce",
    Permission.RECORD: "record",
    Permission.ADMIN: "administer",
}
"""Permissions that some token should have and none has by default, each with a verb for messages."""


class TokenSettings(SettingsSection):
    """A bearer token and the agent that it identifies. An agent may have several."""

    name: str = Field(min_length=1, max_length=200)
    """The agent's name."""
    token: SecretStr = Field(min_length=8)
    """The token; write `${NAME}` to read it from the environment."""
    permissions: frozenset[Permission] = frozenset({Permission.QUERY, Permission.CHECK})
    """The agent's permissions: query, check, announce, record, review, admin, converse, route, erase, approve,
    oversee."""
    tenant: str = Field(default=DEFAULT_TENANT, min_length=1, max_length=200)
    """The tenant whose chat sessions the agent sees; all tokens of an agent have the same one."""
    peer: bool = False
    """True for the token of a peer, that is, another server. An agent named like one of `federation.peers` is a peer
    too. `federation.share` limits the decisions that peers find."""


BRIDGE_KEY_FORM: Final = re.compile(rf"[!-~]{{{MIN_BRIDGE_KEY_CHARACTERS},200}}")


class ManagedTokenSettings(SettingsSection):
    """Tokens that administrators create, rotate and revoke with `cstp token` while servers run."""

    enabled: bool = True
    """False disables them: existing tokens are not accepted, and the methods of AdminService are unknown over both
    transports."""
    default_days: float = Field(default=365.0, gt=0, le=3650)
    """Days until a token expires if its request sets no expiry."""
    max_days: float = Field(default=3650.0, gt=0, le=3650)
    """The maximum number of days until a token expires."""
    keep_days: float = Field(default=90.0, gt=0, le=36_500)
    """Days until an expired or revoked token is removed from the lists; the audit trail still names it. The newest
    token of an agent stays if it is the only one, because it records the agent's tenant."""

    @model_validator(mode="after")
    def check_days(self) -> ManagedTokenSettings:
        if self.default_days > self.max_days:
            raise ValueError("default_days must not be greater than max_days")
        return self


class AuthSettings(SettingsSection):
    """Authentication and permissions."""

    enabled: bool = True
    """False accepts every caller as the agent `anonymous` with all permissions, except creating tokens. Allowed only on
    loopback, and not with `serve.behind_proxy`."""
    tokens: list[TokenSettings] = []
    """The accepted tokens."""
    managed_tokens: ManagedTokenSettings = ManagedTokenSettings()
    """Tokens that administrators create while servers run."""
    jwt: list[JwtIssuerSettings] = []
    """Issuers whose JWTs are accepted as bearer tokens."""
    certificates: list[CertificateAgentSettings] = []
    """Agents that are identified by their client certificates. Set `client_ca` of a listener's `tls` to ask for
    certificates."""
    bridge_key: SecretStr | None = None
    """Shared secret that identifies a remote bridge to the server, which then trusts the client addresses that the
    bridge reports. Set the same value for both. `cstp serve` generates one for its own bridge."""

    @model_validator(mode="after")
    def check_certificate_agents(self) -> AuthSettings:
        """Reject certificates of our own agents, an agent with two tenants, and names that look alike."""
        tenants = {token.name: token.tenant for token in self.tokens}
        for each in self.certificates:
            if each.name in (INTENT_LAYER_AGENT, LIAISON_SUPERVISOR):
                raise ValueError(f"certificates: no agent may be called {each.name}, which acts by itself")
            if tenants.setdefault(each.name, each.tenant) != each.tenant:
                raise ValueError(f"certificates: {each.name} has credentials of two tenants")
        names = NameIndex(tenants)
        for name in tenants:
            if other := names.find_lookalike(name):
                raise ValueError(f"the names of the agents {other!r} and {name!r} look alike; rename one of them")
        return self

    @property
    def tenants(self) -> dict[str, str]:
        tenants = {certificate.name: certificate.tenant for certificate in self.certificates}
        return tenants | {token.name: token.tenant for token in self.tokens}

    @field_validator("jwt")
    @classmethod
    def check_issuers(cls, issuers: list[JwtIssuerSettings]) -> list[JwtIssuerSettings]:
        """Reject an issuer that is named twice, whose settings would be a guess, and issuers that share agents."""
        names = [issuer.issuer for issuer in issuers]
        if duplicates := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"named twice: {', '.join(duplicates)}")
        # Whatever their tenants: what an agent has left is found by its name alone.
        for one, other in permutations(issuers, 2):
            if other.agent_prefix.startswith(one.agent_prefix):
                raise ValueError(
                    f"{one.issuer} and {other.issuer} could name the same agent; give each an agent_prefix, none of "
                    "which begins with another"
                )
        return issuers

    @field_validator("bridge_key")
    @classmethod
    def check_bridge_key(cls, key: SecretStr | None) -> SecretStr | None:
        """Reject a key that could be guessed or that no header can carry."""
        if key is not None and not BRIDGE_KEY_FORM.fullmatch(key.get_secret_value()):
            raise ValueError(f"must be at least {MIN_BRIDGE_KEY_CHARACTERS} visible ASCII characters")
        return key

    @property
    def lets_anyone_in(self) -> bool:
        """Whether there is a way by which someone could call."""
        return not self.enabled or bool(self.tokens or self.jwt or self.certificates)

    @property
    def has_managed_tokens(self) -> bool:
        """Whether tokens are made while servers run."""
        # Security: one that just anyone made without authentication would be accepted once that is on.
        return self.enabled and self.managed_tokens.enabled

    def missing_permissions(self) -> list[Permission]:
        """Return which of announce, record and admin no token has."""
        granted = {permission for token in self.tokens for permission in token.permissions}
        return [permission for permission in EXPECTED_PERMISSIONS if self.enabled and permission not in granted]

    @field_validator("tokens")
    @classmethod
    def check_tokens(cls, tokens: list[TokenSettings]) -> list[TokenSettings]:
        """Reject ambiguous tokens: duplicates, and names reserved for our own agents."""
        names: dict[str, str] = {}
        for token in tokens:
            if token.name == INTENT_LAYER_AGENT:
                raise ValueError(f"no agent may be called {INTENT_LAYER_AGENT}, which keeps what nodes say")
            if token.name == LIAISON_SUPERVISOR:
                raise ValueError(
                    f"no agent may be called {LIAISON_SUPERVISOR}, which takes sessions from liaison agents"
                )
            text = token.token.get_secret_value()
            # Also under one name: the two could have different permissions, and which ones a call has would be a guess.
            if text in names:
                raise ValueError(f"{names[text]} and {token.name} have the same token")
            names[text] = token.name
        return tokens

    @field_validator("tokens")
    @classmethod
    def check_tenants(cls, tokens: list[TokenSettings]) -> list[TokenSettings]:
        tenants: dict[str, str] = {}
        for token in tokens:
            if tenants.setdefault(token.name, token.tenant) != token.tenant:
                raise ValueError(f"{token.name} has tokens of two tenants")
        return tokens
