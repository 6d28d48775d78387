"""Checking and documenting the configuration, and bringing the database to it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import click

from cstp_grpc.card_keys import SigningKey
from cstp_grpc.certificates import ServerCertificate
from cstp_grpc.cli import config_docs
from cstp_grpc.cli.command import config_option, prints, state
from cstp_grpc.cli.failures import startup
from cstp_grpc.cli.guardrails import open_rules
from cstp_grpc.cli.output import Output
from cstp_grpc.client.contract import methods
from cstp_grpc.config import Settings
from cstp_grpc.server.federation import open_peers
from cstp_grpc.server.interceptors.rate_limit import RateLimiting
from cstp_grpc.server.liaison import names_of, redaction_of, remote_agents
from cstp_grpc.server.webhooks import allow_list_of
from cstp_grpc.storage.engine import create_engine, parse_url
from cstp_grpc.storage.migrate import current, head
from cstp_grpc.storage.migrate import migrate as migrate_database


@click.group()
def config() -> None:
    """Check and document the configuration."""


@config.command()
@config_option
@prints
def check(out: Output) -> None:
    """Check the configuration and its rulebooks, and name everything that is wrong with them.

    \b
    Examples:
      cstp config check --config cstp.yaml
      CSTP_GRPC__PORT=50061 cstp config check
    """
    settings = state().settings()
    rules = open_rules(None)
    RateLimiting(settings.rate_limits, methods(), ())
    with startup():
        parse_url(settings.storage_url)
    settings.intent_layer.check_roots()
    check_liaison(settings)
    check_federation(settings)
    SigningKey.of(settings.agent.card_signing, "agent.card_signing")
    ServerCertificate.of(settings.grpc.tls, "grpc.tls")
    ServerCertificate.of(settings.server.tls, "server.tls")
    agents = sorted({token.name for token in settings.auth.tokens})
    facts = {
        "configuration": str(state().config_path or "defaults and environment"),
        "dataDir": str(settings.data_dir),
        "storage": settings.storage_url.partition(":")[0],
        "grpc": f"{settings.grpc.host}:{settings.grpc.port}",
        "bridge": f"{settings.server.host}:{settings.server.port}",
        "a2a": f"{settings.a2a.grpc_host}:{settings.a2a.grpc_port}",
        "embedding": settings.embedding.provider,
        "index": settings.index.mode,
        "ruleSet": rules.version,
        "rulebook": str(settings.cstp.guardrails.config_path or "the default one, which comes with the package"),
        "agents": ", ".join(agents) if settings.auth.enabled else "anyone",
    }
    warnings = list(find_warnings(settings))
    if out.json_wanted:
        out.document({**facts, "warnings": warnings})
        return
    for name, value in facts.items():
        out.line(f"{name:14} {value}")
    for warning in warnings:
        out.note(f"Warning: {warning}")


def find_warnings(settings: Settings) -> Iterator[str]:
    """Yield one sentence for each thing that is allowed and hardly wanted."""
    if settings.auth.enabled and not settings.auth.tokens:
        yield "Nobody could call this server: auth.tokens is empty. `cstp serve --dev` makes a token."
    yield from settings.warnings()
    for key, name in strangers(settings):
        yield f"{key}: no token of auth.tokens belongs to {name}, so that it could not serve the pillar."


def check_liaison(settings: Settings) -> None:
    """Build what liaison routing is configured to need, and call nobody. Raises ConfigError."""
    redaction_of(settings)
    with ExitStack() as opened:
        remote_agents(opened, settings)


def check_federation(settings: Settings) -> None:
    """Build what federation is configured to need, and call nobody. Raises ConfigError."""
    allow_list_of(settings.federation.callbacks.allow, "federation.callbacks.allow")
    allow_list_of(settings.a2a.push.allow, "a2a.push.allow")
    with ExitStack() as opened:
        open_peers(opened, settings.federation)


def strangers(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield the local liaison agents that are named without having a token, each after its key."""
    known = {token.name for token in settings.auth.tokens}
    for pillar, configured in settings.liaison.pillars.items():
        if settings.auth.enabled and configured.agent is not None:
            for name in names_of(pillar, configured):
                if name not in known:
                    yield f"liaison.pillars.{pillar}.agent", name


@config.command()
def docs() -> None:
    """Print docs/configuration.md.

    \b
    Example:
      cstp config docs > docs/configuration.md
    """
    click.echo(config_docs.document(), nl=False)


@click.command()
@config_option
@prints
def migrate(out: Output) -> None:
    """Bring the database to the tables of this version; a server does so too when it starts.

    \b
    Example:
      cstp migrate --config cstp.yaml
    """
    settings = state().settings()
    settings.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    with startup():
        engine = create_engine(settings.storage_url, 1)
        before = current(engine)
        migrate_database(engine)
        engine.dispose()
    if out.json_wanted:
        out.document({"before": before, "after": head()})
    out.line(f"The database is at {head()}; it was at {before or 'nothing'}.")
