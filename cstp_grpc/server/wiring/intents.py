"""Wiring of the protocol's own methods: announce, query, check."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import timedelta
from functools import partial

from cstp_grpc.common.lazy_dataclass import dataclass
from cstp_grpc.core.decisions.journal import Journal
from cstp_grpc.core.decisions.servicer import DecisionQueries, QueryLimits
from cstp_grpc.core.guardrails.checker import ApprovalGate, GuardrailChecker, prepare_history
from cstp_grpc.core.guardrails.evaluator import GuardrailEvaluator
from cstp_grpc.core.guardrails.servicer import GuardrailChecks
from cstp_grpc.core.intents import model
from cstp_grpc.core.intents.announcer import AnnouncementRecords, AnnouncementSources, Announcer, FeedbackSettings
from cstp_grpc.core.intents.closing import IntentCloser
from cstp_grpc.core.intents.intent_feed import IntentFeed
from cstp_grpc.core.intents.outcome_history import OutcomeHistory
from cstp_grpc.core.intents.related_intents import REMOVAL_BATCH, RecentIntents, RelatedIntents
from cstp_grpc.core.intents.servicer import Announcements, CstpService, IntentService
from cstp_grpc.core.intents.sql_outcomes import SqlOutcomeStore
from cstp_grpc.core.intents.sql_shared_intents import SqlSharedIntentStore
from cstp_grpc.core.intents.sql_store import SqlIntentStore
from cstp_grpc.gen.cstp.v1 import cstp_pb2_grpc, intents_pb2_grpc
from cstp_grpc.platform.storage.background_work import ExpiryTask
from cstp_grpc.server.execution import PoolName
from cstp_grpc.server.server_module import Module, SharedParts
from cstp_grpc.server.wiring.decisions import DecisionParts, build_oversight, build_watch_limits, build_watcher_measure

logger = logging.getLogger(__name__)

RETENTION_SECONDS = 600.0
"""Interval between removals of shared intents. Chosen: they are told for a day, so minutes do not matter."""


@dataclass(frozen=True, slots=True)
class IntentParts:
    """The modules of intents, and the parts of them that other modules use."""

    module: Module
    """Closing, and the shared intents that other processes announce."""
    protocol_module: Module
    """The three methods of the protocol, in whose place federation puts its own."""
    checker: GuardrailChecker
    servicer: CstpService
    related: RelatedIntents
    refresh_recent: Callable[[], object]
    """Takes over which shared intents there are now."""


def build_intents_module(
    shared: SharedParts,
    evaluator: GuardrailEvaluator,
    decisions: DecisionParts,
    intents: SqlIntentStore,
    code: model.CodeContextReader,
    citations: model.CitationRecorder | None,
    confidences: model.ConfidenceHistory,
    approvals: ApprovalGate | None,
) -> IntentParts:
    """Build guardrail checks and announcements, which record citations, warn of confidences and request approvals."""
    cstp, pools, name = shared.settings.cstp, shared.pools, shared.settings.agent.name
    recent = build_recent_intents(shared)
    related = RelatedIntents(
        recent,
        shared.embedder,
        shared.read_policy,
        shared.clock,
        shared.pools[PoolName.CHECKS],
        min_score=shared.settings.cstp.intent.related_min_score,
        follows_others=shared.database_is_shared,
    )
    history = build_history(shared, evaluator, decisions.journal, intents)
    observer = shared.observers.verdicts
    checker = GuardrailChecker(evaluator, shared.sink, shared.clock, related, history, approvals, observer)
    announcer = Announcer(
        decisions.search,
        checker,
        AnnouncementSources(code, related, decisions.background, confidences),
        AnnouncementRecords(intents, shared.sink, shared.writer, citations, approvals),
        shared.clock,
        pools[PoolName.CHECKS],
        FeedbackSettings(
            model.SuggestionBars.above(cstp.least_feedback_score, cstp.intent.related_min_score),
            min_score=cstp.least_feedback_score,
            stores_content=cstp.intent.store_received,
            responds=cstp.intent.auto_respond,
        ),
    )
    limits = QueryLimits(cstp.query.max_results, cstp.query.min_score)
    sharing = model.IntentSharing(frozenset(cstp.intent.shared_by))
    servicer = CstpService(
        Announcements(name, announcer, sharing),
        DecisionQueries(name, decisions.search, limits, shared.read_policy, pools[PoolName.QUERIES]),
        GuardrailChecks(name, checker),
    )
    module = build_intent_service_module(shared, decisions, intents, recent)
    protocol = Module(servicers=[(cstp_pb2_grpc.add_CstpServiceServicer_to_server, servicer)])
    return IntentParts(module, protocol, checker, servicer, related, recent.refresh)


def build_history(
    shared: SharedParts, evaluator: GuardrailEvaluator, journal: Journal, intents: SqlIntentStore
) -> OutcomeHistory:
    """Build the history that the guardrails of an evaluator query; it reads nothing before it is asked."""

    def read_changes() -> object:
        return journal.read_state(), intents.count_closings()

    store = SqlOutcomeStore(shared.database, None if shared.database_is_shared else read_changes)
    history = OutcomeHistory(store, shared.read_policy, shared.clock, shared.pools[PoolName.CHECKS])
    # Before the server listens, so that the first check does not wait for it.
    prepare_history(evaluator, history)
    return history


def build_intent_retention(shared: SharedParts, intents: SqlIntentStore) -> list[ExpiryTask]:
    """Build the removal of intents that are as old as the settings say."""
    days = shared.settings.retention.intent_days
    if days is None:
        return []

    def remove_batch() -> bool:
        before = shared.clock() - timedelta(days=days)
        job = partial(intents.remove_before, instant=before, limit=REMOVAL_BATCH)
        return shared.writer.run(job) == REMOVAL_BATCH

    complaint = "expired intents are not deleted"
    return [ExpiryTask("intent-expiry", remove_batch, RETENTION_SECONDS, logger, complaint)]


def build_intent_service_module(
    shared: SharedParts, decisions: DecisionParts, intents: SqlIntentStore, recent: RecentIntents
) -> Module:
    """Build the service that closes and streams intents, and the removal of expired ones."""
    storage, pool = shared.settings.storage, shared.pools[PoolName.OTHERS]
    closer = IntentCloser(intents, recent, decisions.journal, shared.sink, shared.writer, shared.clock, pool)
    limits = build_watch_limits(storage)
    feed = IntentFeed(intents, shared.read_policy, decisions.tokens, limits, storage.refresh_seconds, pool.run)
    service = IntentService(closer, feed, build_oversight(shared), pool.run)
    # Each server removes what is old, from memory and from the database.
    retention = ExpiryTask(
        "intent-retention",
        lambda: recent.remove_expired(shared.writer),
        RETENTION_SECONDS,
        logger,
        "shared intents of more than a day are not removed",
    )
    return Module(
        late_background=[retention, *build_intent_retention(shared, intents)],
        servicers=[(intents_pb2_grpc.add_IntentServiceServicer_to_server, service)],
        begin_stop=[feed.close],
        # Announcements do not notify watchers themselves, since they must not wait for them.
        on_foreign_commit=[recent.refresh, feed.notify],
        measures=[build_watcher_measure("intents", feed)],
    )


def build_recent_intents(shared: SharedParts) -> RecentIntents:
    """Build the shared intents of the last day from the database. Raises QueryFailed."""
    store, embedder = SqlSharedIntentStore(shared.database), shared.embedder
    recent = RecentIntents(store, embedder.model, embedder.dimensions, shared.clock)
    # Before the server listens, so that the first announcement includes them.
    recent.refresh()
    return recent
