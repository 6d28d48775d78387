"""Wiring of the audit trail."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from cstp_grpc.core.audit.audit_feed import AuditFeed
from cstp_grpc.core.audit.checkpointer import Checkpointer
from cstp_grpc.core.audit.model import AuditSink, NullAuditSink
from cstp_grpc.core.audit.oversight import Oversight
from cstp_grpc.core.audit.refused_calls import RefusalCounter, RefusalRecorder
from cstp_grpc.core.audit.retention import AuditRetention
from cstp_grpc.core.audit.servicer import AuditService, IntentLister
from cstp_grpc.core.audit.sql_chain import AuditChain
from cstp_grpc.core.audit.sql_checkpoints import SqlCheckpointStore
from cstp_grpc.core.audit.sql_retention import SqlAuditRetention
from cstp_grpc.core.audit.sql_summary import SqlAuditSummary
from cstp_grpc.core.audit.sql_trail import SqlAuditTrail
from cstp_grpc.core.decisions.sql_store import SqlDecisionStore
from cstp_grpc.gen.cstp.v1 import audit_pb2_grpc
from cstp_grpc.platform.storage.revision_tokens import RevisionTokens
from cstp_grpc.platform.stream_limit import StreamLimit
from cstp_grpc.server.execution import PoolName
from cstp_grpc.server.server_module import BackgroundPart, Module, SharedParts
from cstp_grpc.server.wiring.audit_proofs import build_audit_proofs, signing_key_loader
from cstp_grpc.server.wiring.decisions import build_watch_limits, build_watcher_measure

SETTLING_TIMEOUTS = 3
"""After how many write timeouts no transaction can still add an entry."""


LONG_READS_PER_AGENT = 2
"""Verifications, exports and evidence that an agent may have in progress. Chosen: each reads for seconds."""


def build_audit_module(
    shared: SharedParts, refusals: RefusalCounter, list_intents: IntentLister
) -> tuple[Module, AuditSink]:
    """Build the audit trail, and return it with the sink in which the other modules write their entries.

    Raises ConfigError if the configured signing key cannot be used.
    """
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
    sink: AuditSink = trail if settings.enabled else NullAuditSink()
    feed = build_audit_feed(shared, trail)
    service = AuditService(
        trail,
        SqlAuditSummary(shared.database, shared.clock),
        feed,
        build_audit_proofs(shared.settings, shared.database, None if signer is None else signer.sign),
        StreamLimit("long reads of the audit trail", LONG_READS_PER_AGENT, "fixed"),
        Oversight(trail if settings.enabled else None, shared.clock),
        list_intents,
        shared.pools[PoolName.OTHERS].run,
    )
    module = Module(
        servicers=[(audit_pb2_grpc.add_AuditServiceServicer_to_server, service)],
        begin_stop=[feed.close],
        on_foreign_commit=[feed.notify],
        measures=[build_watcher_measure("audit", feed)],
    )
    if not settings.enabled:
        # The servicer stays: earlier entries can still be listed. Only refused calls are no longer recorded.
        return module, sink
    # Stopped in reverse, so that the last checkpoint signs the last counts.
    background: list[BackgroundPart] = [] if checkpointer is None else [checkpointer]
    background.append(RefusalRecorder(refusals, trail, shared.clock))
    if shared.deployment.resident and (settings.keep_days is not None or settings.keep_content_days is not None):
        background.append(build_retention(shared, trail))
    return replace(module, background=background), sink


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
