"""Reads the state of this server from its modules, its database and its settings."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from cstp_grpc.common.measures import Measure, Readings
from cstp_grpc.common.version import VERSION
from cstp_grpc.contract.errors import QueryFailed
from cstp_grpc.contract.proto_values import timestamp_message
from cstp_grpc.core.guardrails.rules_in_force import RulesInForce
from cstp_grpc.gen.cstp.v1 import access_pb2, status_pb2
from cstp_grpc.platform.config import Settings, count_workers
from cstp_grpc.platform.storage.database_condition import measure_response, measure_size
from cstp_grpc.server.open_services import RULEBOOK_HEALTH
from cstp_grpc.server.server_module import SharedParts

MAX_WARNINGS: Final = 100
LATE_SECONDS: Final = 600.0
"""Waiting time of a queue's oldest item from which it is a warning. Chosen: longer than the pauses between attempts."""
SHOWN_MEASURES: Final = frozenset(
    (
        "calls_in_progress",
        "calls_shed",
        "index_lag_revisions",
        "index_ready",
        "matrix_rows",
        "outbox_items",
        "outbox_oldest_seconds",
        "response_streams_open",
        "writes_waiting",
    )
)

Figures = Mapping[str, Readings]


class ServerStatusReader:
    """Reads the state of this server; `watch` connects the parts that are built after it."""

    def __init__(self, shared: SharedParts, rules: RulesInForce) -> None:
        self._shared = shared
        self._rules = rules
        self._started_at = shared.clock()
        self._measures: Sequence[Measure] = ()
        self._health: Mapping[str, Callable[[], bool]] = {}

    def watch(self, measures: Sequence[Measure], health: Mapping[str, Callable[[], bool]]) -> None:
        """Set the figures and the components whose health is reported."""
        self._measures = [each for each in measures if each.name in SHOWN_MEASURES]
        self._health = health

    def read(self) -> status_pb2.GetServerStatusResponse:
        """Return the state of this server, also if the database does not answer."""
        settings = self._shared.settings
        database = self._read_database()
        figures = self._read_figures(database_answers=database.answers)
        status = status_pb2.GetServerStatusResponse(
            agent=settings.agent.name,
            version=VERSION,
            started_at=timestamp_message(self._started_at),
            now=timestamp_message(self._shared.clock()),
            modules=enabled_modules(settings),
            rules=self._read_rules(),
            database=database,
            search=self._read_search(figures),
            queues=read_queues(figures),
            processes=self._read_processes(figures),
        )
        for subject, message in self._find_warnings(status):
            if len(status.warnings) < MAX_WARNINGS:
                status.warnings.add(subject=subject, message=message)
        return status

    def _read_rules(self) -> status_pb2.RulesStatus:
        state = self._rules.state
        listing = state.loaded.listing
        return status_pb2.RulesStatus(
            guardrails=access_pb2.GuardrailSet(version=listing.version, count=listing.count),
            loaded_at=timestamp_message(listing.loaded_at),
            failed_at=timestamp_message(state.failure.failed_at) if state.failure else None,
        )

    def _read_database(self) -> status_pb2.DatabaseStatus:
        database = self._shared.database
        status = status_pb2.DatabaseStatus(
            kind="sqlite" if database.is_sqlite else "postgresql", size_bytes=measure_size(database)
        )
        try:
            response = measure_response(database)
        except QueryFailed:
            return status
        status.answers = True
        status.latency_ms = response.latency_ms
        if response.migration is not None:
            status.migration = response.migration
        return status

    def _read_figures(self, *, database_answers: bool) -> Figures:
        """Return the figures that can be read now."""
        found: dict[str, dict[tuple[str, ...], float]] = defaultdict(dict)
        for measure in self._measures:
            if database_answers or not measure.of_database:
                try:
                    found[measure.name].update(measure.read())
                except QueryFailed:
                    # The warning is that of the database, whose failure is logged.
                    continue
        return found

    def _read_search(self, figures: Figures) -> status_pb2.SearchStatus:
        engine = self._shared.settings.search.engine
        return status_pb2.SearchStatus(
            model=self._shared.embedder.model,
            decisions_in_memory=int(value_of(figures, "matrix_rows")),
            index=engine,
            index_ready=engine == "memory" or value_of(figures, "index_ready") > 0,
            index_lag=int(value_of(figures, "index_lag_revisions")),
        )

    def _read_processes(self, figures: Figures) -> status_pb2.ProcessStatus:
        deployment = self._shared.deployment
        return status_pb2.ProcessStatus(
            workers=count_workers(self._shared.settings.serve) if deployment.supervised else 1,
            pid=os.getpid(),
            calls_in_progress=int(value_of(figures, "calls_in_progress")),
            open_streams=int(value_of(figures, "response_streams_open")),
            calls_shed=int(value_of(figures, "calls_shed")),
            memory_bytes=read_memory(),
        )

    def _find_warnings(self, status: status_pb2.GetServerStatusResponse) -> Iterator[tuple[str, str]]:
        """Yield the subjects and texts of warnings, the most urgent first."""
        # Not loaded before it is asked for: it loads the library of certificates.
        from cstp_grpc.server.status import machine_checks

        settings, now = self._shared.settings, self._shared.clock()
        if not status.database.answers:
            yield "database", "The database does not answer; the log has the reason."
        if status.rules.HasField("failed_at"):
            yield "rules", "Changed rulebooks could not be loaded, so the rules before remain in force."
        for name, is_healthy in self._health.items():
            if name != RULEBOOK_HEALTH and not is_healthy():
                yield name, "It is not healthy; the log has the reason."
        for queue in status.queues:
            if queue.oldest_seconds > LATE_SECONDS:
                minutes = int(queue.oldest_seconds // 60)
                yield "queues", f"{queue.name}: {queue.waiting} items wait, the oldest for {minutes} minutes."
        findings = [*machine_checks.check_certificates(settings, now)]
        if settings.data_dir.exists():
            free = machine_checks.measure_free_space(settings.data_dir)
            findings.append(machine_checks.judge_free_space(settings.data_dir, free))
        for finding in findings:
            if finding.status is not machine_checks.DiagnosisStatus.OK:
                yield finding.check, f"{finding.message}. {finding.advice or ''}".strip()
        for sentence in settings.warnings():
            yield "configuration", sentence


def value_of(figures: Figures, name: str) -> float:
    """Return the sum of a figure; 0 if it could not be read."""
    return sum(figures.get(name, {}).values())


def read_queues(figures: Figures) -> list[status_pb2.QueueStatus]:
    """Return the queues by name, that of writes first."""
    queues = [status_pb2.QueueStatus(name="writes", waiting=int(value_of(figures, "writes_waiting")))]
    ages = figures.get("outbox_oldest_seconds", {})
    for labels, count in sorted(figures.get("outbox_items", {}).items()):
        queues.append(status_pb2.QueueStatus(name=labels[0], waiting=int(count), oldest_seconds=ages.get(labels, 0.0)))
    return queues


def enabled_modules(settings: Settings) -> list[str]:
    enabled = {
        "a2a": settings.a2a.enabled,
        "approvals": settings.approvals.enabled,
        "audit": settings.audit.enabled,
        "callbacks": bool(settings.federation.callbacks.allow),
        "federation": bool(settings.federation.peers),
        "intent_layer": settings.intent_layer.enabled,
        "liaison": settings.liaison.enabled,
        "managed_tokens": settings.auth.has_managed_tokens,
        "notifications": bool(settings.notifications.webhooks),
    }
    return [name for name, is_enabled in enabled.items() if is_enabled]


def read_memory() -> int:
    """Return the resident memory of this process in bytes; 0 where the system has no /proc."""
    try:
        return int(Path("/proc/self/statm").read_text("ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0
