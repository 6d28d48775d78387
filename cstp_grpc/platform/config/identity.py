"""Settings of callers that are identified by JWTs of issuers, and by client certificates."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from cstp_grpc.contract.enums import DEFAULT_TENANT, Permission
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
