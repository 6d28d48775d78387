"""Wiring of callers who are known by others."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial

from cstp_grpc.client.http_client import HttpClient
from cstp_grpc.client.tls import raise_config_errors, read_ca_file, tls_context
from cstp_grpc.core.tokens.model import TokenIdentity
from cstp_grpc.platform.config import Settings
from cstp_grpc.platform.config.identity import CertificateAgentSettings, JwtIssuerSettings
from cstp_grpc.platform.storage.background_work import PeriodicTask
from cstp_grpc.server.identity.call_origin import CallOrigins
from cstp_grpc.server.identity.client_certificates import CertificateAgent, ClientCertificates
from cstp_grpc.server.identity.jwt_tokens import DEFAULT_SCOPES, ClaimMapping, JwtIssuer, JwtVerifier
from cstp_grpc.server.identity.signing_keys import MAX_SET_BYTES, KeySource, SigningKeys, fetch_key_document

logger = logging.getLogger(__name__)

LOOK_SECONDS = 5.0
"""How often it is asked which keys are due."""


class KeyFollower(PeriodicTask):
    """Reads the keys of issuers when they are due or wanted, in a thread."""

    def __init__(self) -> None:
        self._sets: list[SigningKeys] = []
        super().__init__("signing-keys", self._look, LOOK_SECONDS, logger, "the keys of issuers are not read")

    def follow(self, keys: SigningKeys) -> None:
        """Read a set of keys, too; before the start."""
        self._sets.append(keys)

    def start(self) -> None:
        """Read all keys, and go on reading them in a thread. An issuer that does not answer is asked again later."""
        self._look()
        super().start()

    def _look(self) -> None:
        for keys in self._sets:
            keys.refresh_if_due()


def build_jwt_verifier(settings: Settings) -> tuple[JwtVerifier, KeyFollower]:
    """Build what verifies JWTs of the configured issuers, and what reads their keys. Raises ConfigError."""
    follower = KeyFollower()
    issuers = [build_issuer(each, f"auth.jwt.{number}", follower) for number, each in enumerate(settings.auth.jwt)]
    return JwtVerifier(issuers, settings.auth.tenants, follower.wake), follower


def build_issuer(issuer: JwtIssuerSettings, setting: str, follower: KeyFollower) -> JwtIssuer:
    """Build an issuer, whose keys are followed. Raises ConfigError."""
    keys = SigningKeys(issuer.issuer, build_key_source(issuer, setting), issuer.algorithms, issuer.refresh_seconds)
    follower.follow(keys)
    scopes = {value: frozenset(permitted) for value, permitted in issuer.permissions.items()} or DEFAULT_SCOPES
    mapping = ClaimMapping(
        issuer.agent_claim, issuer.agent_prefix, issuer.tenant_claim, issuer.tenant, issuer.permissions_claim, scopes
    )
    return JwtIssuer(
        issuer.issuer,
        issuer.audience,
        frozenset(issuer.algorithms),
        issuer.leeway_seconds,
        mapping,
        keys,
        frozenset(issuer.configured_agents),
    )


def build_key_source(issuer: JwtIssuerSettings, setting: str) -> KeySource:
    """Return the function that reads the keys of an issuer. Raises ConfigError."""
    with raise_config_errors(setting, issuer.ca_file):
        tls = tls_context(read_ca_file(issuer.ca_file), issuer.jwks_url.partition(":")[0])
    return partial(fetch_key_document, HttpClient(tls, max_bytes=MAX_SET_BYTES), issuer.jwks_url)


def build_client_certificates(agents: Sequence[CertificateAgentSettings], origins: CallOrigins) -> ClientCertificates:
    return ClientCertificates(
        [
            CertificateAgent(
                TokenIdentity(each.name, each.permissions, each.tenant), each.uri, each.dns, each.common_name
            )
            for each in agents
        ],
        origins,
    )
