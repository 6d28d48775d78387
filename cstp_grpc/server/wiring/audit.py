"""Wiring of the audit trail."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from cstp_grpc.common.lazy_dataclass import dataclass
from cstp_grpc.contract.caller import current_caller
from cstp_grpc.core.audit.audit_feed import AuditFeed
from cstp_grpc.core.audit.checkpointer import Checkpointer
from cstp_grpc.core.audit.model import AuditEntry, AuditEvent, AuditSink, NullAuditSink, truncate_action
from cstp_grpc.core.audit.refused_calls import RefusalCounter, RefusalRecorder
from cstp_grpc.core.audit.retention import AuditRetention
from cstp_grpc.core.audit.servicer import AuditService, IntentLister
from cstp_grpc.core.audit.sql_chain import AuditChain
from cstp_grpc.core.audit.sql_checkpoints import SqlCheckpointStore
from cstp_grpc.core.audit.sql_retention import SqlAuditRetention
from cstp_grpc.core.audit.sql_summary import SqlAuditSummary
from cstp_grpc.core.audit.sql_trail import SqlAuditTrail
from cstp_grpc.core.audit.verification import VerificationReport
from cstp_grpc.core.decisions.sql_store import SqlDecisionStore
from cstp_grpc.gen.cstp.v1 import audit_pb2_grpc
from cstp_grpc.platform.storage.revision_tokens import RevisionTokens
from cstp_grpc.platform.stream_limit import StreamLimit
from cstp_grpc.server.execution import PoolName
from cstp_grpc.server.server_module import BackgroundPart, Module, SharedParts
from cstp_grpc.server.wiring.audit_proofs import build_audit_proofs, signing_key_loader
from cstp_grpc.server.wiring.decisions import build_oversight, build_watch_limits, build_watcher_measure

SETTLING_TIMEOUTS = 3
"""After how many write timeouts no transaction can still add an entry."""


LONG_READS_PER_AGENT = 2
"""Verifications, exports and evidence that an agent may have in progress. Chosen: each reads for seconds."""


@dataclass(frozen=True, slots=True)
class AuditParts:
    """The trail and its background work, and the sink in which the other modules write their entries."""

    module: Module
    sink: AuditSink
    trail: SqlAuditTrail
    sign: Callable[[], object] | None
    """Makes a checkpoint; None if the server stores no entries."""


def build_audit_trail(shared: SharedParts, refusals: RefusalCounter) -> AuditParts:
    """Build the audit trail. Raises ConfigError if the configured signing key cannot be used."""
    settings = shared.settings.audit
    # Without a server, only evidence asks for a checkpoint.
    signer = build_checkpointer(shared) if settings.enabled else None
    checkpointer = signer if shared.deployment.resident else None
    chain = AuditChain(
        shared.database.dialect,
        is_shared=shared.database_is_shared,
        due_after=settings.checkpoint_entries,
        on_due=None if checkpointer is None else checkpointer.wake,
    )
    trail = SqlAuditTrail(shared.database, shared.writer, settings.judged_content, chain)
    if signer is None:
        return AuditParts(Module(), NullAuditSink(), trail, None)
    # Stopped in reverse, so that the last checkpoint signs the last counts.
    background: list[BackgroundPart] = [] if checkpointer is None else [checkpointer]
    background.append(RefusalRecorder(refusals, trail, shared.clock))
    if shared.deployment.resident and (settings.keep_days is not None or settings.keep_content_days is not None):
        background.append(build_retention(shared, trail))
    return AuditParts(Module(background=background), trail, trail, signer.sign)


def build_audit_module(shared: SharedParts, parts: AuditParts, list_intents: IntentLister) -> Module:
    """Build the service that reads and proves the trail; without entries of its own it reads earlier ones."""
    feed = build_audit_feed(shared, parts.trail)

    def record_findings(report: VerificationReport) -> None:
        caller = current_caller.get()
        shared.sink.record(
            AuditEntry(
                timestamp=shared.clock(),
                event=AuditEvent.VERIFICATION_FAILED,
                requesting_agent=caller.agent,
                request_id=caller.request_id,
                action=truncate_action(report.findings[0].message),
                count=len(report.findings) + report.further_findings,
            )
        )

    service = AuditService(
        parts.trail,
        SqlAuditSummary(shared.database, shared.clock),
        feed,
        build_audit_proofs(shared.settings, shared.database, parts.sign, record_findings),
        StreamLimit("long reads of the audit trail", LONG_READS_PER_AGENT, "fixed"),
        build_oversight(shared),
        list_intents,
        shared.pools[PoolName.OTHERS].run,
    )
    return Module(
        servicers=[(audit_pb2_grpc.add_AuditServiceServicer_to_server, service)],
        begin_stop=[feed.close],
        on_foreign_commit=[feed.notify],
        measures=[build_watcher_measure("audit", feed)],
    )


def build_audit_feed(shared: SharedParts, trail: SqlAuditTrail) -> AuditFeed:
    storage = shared.settings.storage
    # On PostgreSQL, a transaction may be committed so long after another one that began later.
    settling = 0.0 if shared.database.is_sqlite else SETTLING_TIMEOUTS * storage.write_timeout_seconds
    return AuditFeed(
        trail,
        RevisionTokens(SqlDecisionStore(shared.database, shared.read_policy).identity()),
        shared.clock,
        timedelta(seconds=settling),
        build_watch_limits(storage),
        storage.refresh_seconds,
        shared.pools[PoolName.OTHERS].run,
    )


def build_checkpointer(shared: SharedParts) -> Checkpointer:
    """Build the signer of checkpoints. Raises ConfigError if the configured key cannot be used."""
    settings = shared.settings.audit
    load_key = signing_key_loader(shared.settings)
    if settings.signing_key_file is not None and shared.deployment.resident:
        load_key()
    return Checkpointer(
        SqlCheckpointStore(shared.database), shared.writer, load_key, shared.clock, settings.checkpoint_seconds
    )


def build_retention(shared: SharedParts, trail: SqlAuditTrail) -> AuditRetention:
    settings = shared.settings.audit
    return AuditRetention(
        SqlAuditRetention(shared.database),
        trail,
        shared.writer,
        signing_key_loader(shared.settings),
        shared.clock,
        content_kept=None if settings.keep_content_days is None else timedelta(days=settings.keep_content_days),
        entries_kept=None if settings.keep_days is None else timedelta(days=settings.keep_days),
    )
