"""Wiring of the credentials beyond the tokens of the settings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

from cstp_grpc.common.lazy_dataclass import dataclass
from cstp_grpc.core.tokens.live_tokens import LiveTokens
from cstp_grpc.platform.config import Settings
from cstp_grpc.platform.config.trusted_networks import TrustedNetworks
from cstp_grpc.server.identity.authentication import Credentials, GuessingGuard
from cstp_grpc.server.identity.call_origin import CallOrigins
from cstp_grpc.server.identity.wrong_tokens import WrongTokenThrottle
from cstp_grpc.server.interceptors.rate_limits import parse_rate
from cstp_grpc.server.server_module import BackgroundPart


@dataclass(frozen=True, slots=True)
class CredentialParts:
    """The credentials of callers, and the parts that run for them."""

    credentials: Credentials
    live_tokens: LiveTokens
    background: Sequence[BackgroundPart]


def build_credentials(settings: Settings, clock: Callable[[], datetime]) -> CredentialParts:
    """Build the credentials of callers; unconfigured kinds are not imported. Raises ConfigError."""
    live = LiveTokens(clock)
    auth, key = settings.auth, settings.auth.bridge_key
    trusted = TrustedNetworks.parse(settings.grpc.trusted_proxies, "grpc.trusted_proxies")
    origins = CallOrigins(None if key is None else key.get_secret_value(), trusted)
    rate = settings.rate_limits.wrong_tokens if settings.rate_limits.enabled else None
    guard = None if rate is None else GuessingGuard(WrongTokenThrottle(*parse_rate(rate)), origins)
    jwt = certificates = None
    background: list[BackgroundPart] = []
    if auth.jwt:
        from cstp_grpc.server.wiring.identity import build_jwt_verifier

        jwt, follower = build_jwt_verifier(settings)
        background.append(follower)
    if auth.certificates:
        from cstp_grpc.server.wiring.identity import build_client_certificates

        certificates = build_client_certificates(auth.certificates, origins)
    return CredentialParts(Credentials(live, jwt, certificates, guard), live, background)
