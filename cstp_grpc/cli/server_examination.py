"""Examines what a server needs, from its configuration to its peers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial

import click

from cstp_grpc.agents.hooks.hook_texts import describe_rules
from cstp_grpc.cli.peers import PeerHealth, probe_peers
from cstp_grpc.cli.settings_check import check_settings, find_warnings
from cstp_grpc.contract.errors import ConfigError
from cstp_grpc.platform.config import Settings
from cstp_grpc.server.maintenance import diagnosis
from cstp_grpc.server.status.machine_checks import Diagnosis, DiagnosisStatus, check_certificates


def examine_server(load_settings: Callable[[], Settings], seconds: float, *, thorough: bool) -> list[Diagnosis]:
    """Return the findings of all checks; peers have `seconds` to answer. Without settings there is one finding only."""
    try:
        settings = load_settings()
    except ConfigError as error:
        return [
            Diagnosis("configuration", DiagnosisStatus.ERROR, str(error), "Correct it; `cstp config check` tells more.")
        ]
    now = datetime.now(UTC)
    return [
        *check_configuration(settings),
        *diagnosis.run_check("disk", partial(diagnosis.check_disk, settings.data_dir)),
        *diagnosis.run_check("database", partial(diagnosis.check_database, settings, now, thorough=thorough)),
        *diagnosis.run_check("certificates", partial(check_certificates, settings, now)),
        *diagnosis.run_check("embedding", partial(diagnosis.check_embedding, settings)),
        *diagnosis.run_check("issuers", partial(diagnosis.check_issuers, settings)),
        *diagnosis.run_check("search", partial(diagnosis.check_search, settings)),
        *diagnosis.run_check("redis", partial(diagnosis.check_redis_access, settings)),
        *diagnosis.run_check("peers", partial(check_peers, settings, seconds)),
    ]


def check_configuration(settings: Settings) -> Iterator[Diagnosis]:
    """Check the settings and the rule set, as `cstp config check` does."""
    try:
        rules = check_settings(settings)
    except (ConfigError, click.ClickException) as error:
        message = error.message if isinstance(error, click.ClickException) else str(error)
        yield Diagnosis("configuration", DiagnosisStatus.ERROR, message, "Correct it; a server would not start.")
        return
    warnings = list(find_warnings(settings))
    for warning in warnings:
        yield Diagnosis("configuration", DiagnosisStatus.WARNING, warning, "Change the setting if that is not meant.")
    if not warnings:
        yield Diagnosis("configuration", DiagnosisStatus.OK, "is valid")
    described = describe_rules([rulebook.name for rulebook in rules.rulebooks])
    yield Diagnosis("rule set", DiagnosisStatus.OK, f"version {rules.version}. {described}".rstrip())


def check_peers(settings: Settings, seconds: float) -> Iterator[Diagnosis]:
    if not settings.federation.peers:
        yield Diagnosis("peers", DiagnosisStatus.OK, "none is configured")
    for health in probe_peers(settings, seconds):
        yield judge_peer(health)


def judge_peer(health: PeerHealth) -> Diagnosis:
    peer = health.configured
    if not health.healthy:
        status = DiagnosisStatus.ERROR if peer.role == "required" else DiagnosisStatus.WARNING
        blocked = "; what it is asked about is blocked" if peer.role == "required" else ""
        advice = f"Start it, or correct its entry in federation.peers{blocked}."
        return Diagnosis("peers", status, f"{peer.name} at {peer.url}: {health.status.value.replace('_', ' ')}", advice)
    if missing := health.missing_permissions:
        advice = f"Add {', '.join(missing)} to the permissions of our token there."
        return Diagnosis("peers", DiagnosisStatus.WARNING, f"{peer.name} does not let us ask everything", advice)
    return Diagnosis("peers", DiagnosisStatus.OK, f"{peer.name} answered in {health.latency_ms:.0f} ms")
