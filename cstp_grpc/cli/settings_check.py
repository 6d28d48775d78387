"""Validates the configuration of a server by building its parts, without listening or calling anyone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

from cstp_grpc.cli.command_decorators import startup_errors_as_failures
from cstp_grpc.cli.local_check import open_rules
from cstp_grpc.client.tls import raise_config_errors, read_ca_file
from cstp_grpc.common.extras import require_extra
from cstp_grpc.contract.card_keys import SigningKey
from cstp_grpc.contract.methods import contract_methods
from cstp_grpc.core.guardrails.model import RuleSet
from cstp_grpc.modules.federation.peer import open_peers
from cstp_grpc.platform.certificates import ServerCertificate
from cstp_grpc.platform.config import Settings
from cstp_grpc.platform.config.exposure import ALL_LISTENERS, check_listeners
from cstp_grpc.platform.config.trusted_networks import TrustedNetworks
from cstp_grpc.platform.storage.database import parse_database_url
from cstp_grpc.server.grpc_server import build_shared_limiter
from cstp_grpc.server.interceptors.rate_limits import RateLimiter
from cstp_grpc.server.wiring.callbacks import read_callback_urls
from cstp_grpc.server.wiring.liaison import local_agent_names, read_liaison_inputs
from cstp_grpc.server.wiring.tasks import read_push_urls


def check_settings(settings: Settings) -> RuleSet:
    """Check the settings and what they name, and return their rules. Raises ConfigError and click.ClickException."""
    rules = open_rules(None)
    check_listeners(settings, ALL_LISTENERS)
    # Built for its checks alone: a limit for a method that does not exist is an error.
    limiter = RateLimiter(settings.rate_limits, contract_methods(), ())
    build_shared_limiter(settings.rate_limits, contract_methods(), limiter)
    with startup_errors_as_failures():
        parse_database_url(settings.storage_url)
        if settings.search.engine == "postgresql":
            parse_database_url(settings.search.url or settings.storage_url, "search.url")
    settings.intent_layer.check_roots()
    check_liaison(settings)
    check_federation(settings)
    SigningKey.load(settings.agent.card_signing, "agent.card_signing")
    ServerCertificate.load(settings.grpc.tls, "grpc.tls")
    ServerCertificate.load(settings.server.tls, "server.tls")
    ServerCertificate.load(settings.metrics.tls, "metrics.tls")
    TrustedNetworks.parse(settings.grpc.trusted_proxies, "grpc.trusted_proxies")
    TrustedNetworks.parse(settings.server.trusted_proxies, "server.trusted_proxies")
    check_telemetry(settings)
    return rules


def find_warnings(settings: Settings) -> Iterator[str]:
    """Yield a sentence for each setting that is valid but probably a mistake."""
    if not settings.auth.lets_anyone_in:
        yield "Nobody could call this server: auth.tokens is empty. `cstp serve --dev` makes a token."
    yield from settings.warnings()
    for key, name in agents_without_token(settings):
        yield f"{key}: no token of auth.tokens belongs to {name}, so that it could not serve the pillar."


def check_telemetry(settings: Settings) -> None:
    """Check what it takes to send traces and metrics, if any are to be sent. Raises ConfigError and MissingExtra."""
    if settings.otlp.endpoint is not None:
        require_extra("otel")
        with raise_config_errors("otlp", settings.otlp.ca_file):
            read_ca_file(settings.otlp.ca_file)


def check_liaison(settings: Settings) -> None:
    """Build the objects that liaison routing is configured to need, without calling anyone. Raises ConfigError."""
    if settings.liaison.enabled:
        with ExitStack() as opened:
            read_liaison_inputs(opened, settings)


def check_federation(settings: Settings) -> None:
    """Build the objects that federation is configured to need, without calling anyone. Raises ConfigError."""
    read_callback_urls(settings)
    read_push_urls(settings)
    with ExitStack() as opened:
        open_peers(opened, settings.federation)


def agents_without_token(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield the configured local liaison agents without a token, each with its setting's key."""
    if settings.auth.jwt:
        # Whom an issuer knows, it alone knows.
        return
    known = settings.auth.tenants
    for pillar, configured in settings.liaison.pillars.items():
        if settings.liaison.enabled and settings.auth.enabled and configured.agent is not None:
            for name in local_agent_names(pillar, configured):
                if name not in known:
                    yield f"liaison.pillars.{pillar}.agent", name
