"""Settings of callers who are known by others: JWTs of issuers, and client certificates."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from cstp_grpc.contract.enums import DEFAULT_TENANT, Permission
from cstp_grpc.platform.config.environment import is_loopback
from cstp_grpc.platform.config.settings_section import URL, AgentName, SettingsSection

Algorithm = Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]
"""The algorithms of RFC 7518 and RFC 8037 with public keys. Those with shared secrets are no choice: whoever verifies
could forge."""
ClaimPath = Annotated[str, Field(min_length=1, max_length=200)]


class JwtIssuerSettings(SettingsSection):
    """An issuer of JWTs, such as an OpenID provider, whose tokens identify agents."""

    issuer: str = Field(min_length=1, max_length=500)
    """What `iss` must be, letter by letter."""
    audience: list[Annotated[str, Field(min_length=1, max_length=500)]] = Field(min_length=1)
    """What this server is called there; `aud` must name one of them."""
    jwks_url: str = Field(pattern=URL)
    """Where the issuer publishes its keys (RFC 7517), by `https`, or `http` on this machine."""
    ca_file: Path | None = None
    """A PEM file of the authorities that certify that address, in place of the system's."""
    algorithms: list[Algorithm] = Field(default=["RS256", "ES256", "EdDSA"], min_length=1)
    """The algorithms that are accepted. Of the keys only those of the algorithm of a token are tried."""
    agent_claim: ClaimPath = "sub"
    """The claim with the agent's name; `.` leads into objects."""
    agent_prefix: str = Field(default="", max_length=100)
    """What is put before the name, so that it is never that of an agent that others name: `corp/`. Each of several
    issuers needs one, and none may begin with another."""
    configured_agents: list[AgentName] = []
    """Agents of `auth.tokens` and `auth.certificates` that its tokens may name, prefix included; the others of them it
    may not."""
    tenant_claim: ClaimPath | None = None
    """The claim with the agent's tenant, which must then be there; when absent, all agents belong to `tenant`."""
    tenant: str = Field(default=DEFAULT_TENANT, min_length=1, max_length=200)
    """The tenant of all agents where no claim says it."""
    permissions_claim: ClaimPath = "scope"
    """The claim with what the agent may do: a list, or words with spaces between them."""
    permissions: dict[str, list[Permission]] = {}
    """What the values of that claim permit; all others permit nothing. When absent, `cstp:query` permits `query`, and
    so on for each permission."""
    leeway_seconds: float = Field(default=30.0, ge=0, le=300)
    """How far the clocks of the issuer and of this server may be apart."""
    refresh_seconds: float = Field(default=300.0, ge=10, le=86_400)
    """How often the keys are read. A token with an unknown key has them read at once, every ten seconds at the most."""
    discovery_url: str | None = Field(default=None, pattern=URL)
    """The OpenID Connect discovery document, for the agent card."""
    token_url: str | None = Field(default=None, pattern=URL)
    """Where agents get tokens by OAuth 2.0 client credentials, for the agent card."""

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
    """The common name of its subject; certificates with alternative names are better matched by those."""
    permissions: frozenset[Permission] = frozenset({Permission.QUERY, Permission.CHECK})
    """What the agent may do: query, check, announce, record, review, admin, converse, route, erase, approve."""
    tenant: str = Field(default=DEFAULT_TENANT, min_length=1, max_length=200)
    """The tenant whose chat sessions the agent sees."""

    @model_validator(mode="after")
    def check_match(self) -> CertificateAgentSettings:
        if sum(each is not None for each in (self.uri, self.dns, self.common_name)) != 1:
            raise ValueError("exactly one of uri, dns and common_name must be given")
        return self
