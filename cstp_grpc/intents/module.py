"""Wiring of the protocol's own methods: announce, query, check."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from cstp_grpc.audit.model import AuditSink
from cstp_grpc.decisions.journal import Journal
from cstp_grpc.decisions.module import build_watch_limits
from cstp_grpc.decisions.read_policy import ReadPolicy
from cstp_grpc.decisions.revision_tokens import RevisionTokens
from cstp_grpc.decisions.search.decision_search import DecisionSearch
from cstp_grpc.decisions.store import BackgroundReader
from cstp_grpc.gen.cstp.v1 import cstp_pb2_grpc, intents_pb2_grpc
from cstp_grpc.guardrails.checker import ApprovalGate, GuardrailChecker
from cstp_grpc.guardrails.evaluator import GuardrailEvaluator
from cstp_grpc.guardrails.history_lookup import prepare_history
from cstp_grpc.intents.announcer import Announcer, CitationRecorder, ConfidenceHistory
from cstp_grpc.intents.closing import IntentCloser
from cstp_grpc.intents.intent_feed import IntentFeed
from cstp_grpc.intents.model import CodeContextReader, IntentSharing, IntentStore
from cstp_grpc.intents.outcome_history import OutcomeHistory
from cstp_grpc.intents.related_intents import RecentIntents, RelatedIntents
from cstp_grpc.intents.servicer import CstpService, IntentService, QueryLimits
from cstp_grpc.intents.sql_outcomes import SqlOutcomeStore
from cstp_grpc.intents.sql_shared_intents import SqlSharedIntentStore
from cstp_grpc.intents.suggestions import SuggestionBars
from cstp_grpc.server.execution import PoolName
from cstp_grpc.server_module import Module, SharedParts
from cstp_grpc.storage.background_work import ExpiryTask

logger = logging.getLogger(__name__)

RETENTION_SECONDS = 600.0
"""Interval between removals of shared intents. Chosen: they are told for a day, so minutes do not matter."""


@dataclass(frozen=True, slots=True)
class IntentParts:
    """The modules of intents, and what other rooms use of them."""

    module: Module
    """Closing, and the shared intents that other processes announce."""
    protocol_module: Module
    """The three methods of the protocol, in whose place federation puts its own."""
    checker: GuardrailChecker
    servicer: CstpService
    limits: QueryLimits


def build_intents_module(
    shared: SharedParts,
    evaluator: GuardrailEvaluator,
    search: DecisionSearch,
    background: BackgroundReader,
    journal: Journal,
    intents: IntentStore,
    code: CodeContextReader,
    sink: AuditSink,
    citations: CitationRecorder | None,
    read_policy: ReadPolicy,
    confidences: ConfidenceHistory,
    tokens: RevisionTokens,
    approvals: ApprovalGate | None,
) -> IntentParts:
    """Build guardrail checks and announcements.

    `citations` records which decisions an agent was given; `confidences` warns it of its own; `approvals` requests
    approvals unless they are left out.
    """
    settings, pools = shared.settings, shared.pools
    recent = build_recent_intents(shared)
    related = build_related_intents(shared, recent, read_policy)
    history = build_history(shared, read_policy, journal, intents)
    # Before the server listens, so that the first check does not wait for it.
    prepare_history(evaluator, history)
    checker = GuardrailChecker(evaluator, sink, shared.clock, related, history, approvals)
    announcer = Announcer(
        search,
        checker,
        code,
        intents,
        sink,
        shared.writer,
        shared.clock,
        pools[PoolName.CHECKS],
        related,
        background,
        bars=SuggestionBars.above(settings.cstp.least_feedback_score, settings.cstp.intent.related_min_score),
        min_score=settings.cstp.least_feedback_score,
        stores_content=settings.cstp.intent.store_received,
        responds=settings.cstp.intent.auto_respond,
        citations=citations,
        confidences=confidences,
        approvals=approvals,
    )
    limits = QueryLimits(settings.cstp.query.max_results, settings.cstp.query.min_score)
    sharing = IntentSharing(frozenset(settings.cstp.intent.shared_by))
    servicer = CstpService(
        settings.agent.name, announcer, search, checker, limits, read_policy, sharing, queries=pools[PoolName.QUERIES]
    )
    closer = IntentCloser(intents, recent, journal, sink, shared.writer, shared.clock, pools[PoolName.OTHERS])
    feed = build_feed(shared, intents, read_policy, tokens)
    module = build_intent_service_module(shared, recent, closer, feed)
    protocol_module = Module(servicers=[(cstp_pb2_grpc.add_CstpServiceServicer_to_server, servicer)])
    return IntentParts(module, protocol_module, checker, servicer, limits)


def build_history(
    shared: SharedParts, read_policy: ReadPolicy, journal: Journal, intents: IntentStore
) -> OutcomeHistory:
    """Build what guardrails ask for the past; it reads nothing before it is asked."""

    def read_changes() -> object:
        return journal.read_state(), intents.count_closings()

    store = SqlOutcomeStore(shared.database, None if shared.database_is_shared else read_changes)
    return OutcomeHistory(store, read_policy, shared.clock, shared.pools[PoolName.CHECKS])


def build_feed(
    shared: SharedParts, intents: IntentStore, read_policy: ReadPolicy, tokens: RevisionTokens
) -> IntentFeed:
    """Build the feed of announced intents."""
    storage = shared.settings.storage
    limits, run_blocking = build_watch_limits(storage), shared.pools[PoolName.OTHERS].run
    return IntentFeed(intents, read_policy, tokens, limits, storage.refresh_seconds, run_blocking)


def build_intent_service_module(
    shared: SharedParts, recent: RecentIntents, closer: IntentCloser, feed: IntentFeed
) -> Module:
    """Build the service that closes and streams intents, and the removal of those that are not told any more."""
    service = IntentService(closer, feed, shared.pools[PoolName.OTHERS].run)
    # Each server removes what is old, from memory and from the database.
    retention = ExpiryTask(
        "intent-retention",
        lambda: recent.remove_expired(shared.writer),
        RETENTION_SECONDS,
        logger,
        "shared intents of more than a day are not removed",
    )
    return Module(
        late_background=[retention],
        servicers=[(intents_pb2_grpc.add_IntentServiceServicer_to_server, service)],
        begin_stop=[feed.close],
        # Announcements notify nobody themselves, since they must not wait for watchers.
        on_foreign_commit=[recent.refresh, feed.notify],
    )


def build_related_intents(shared: SharedParts, recent: RecentIntents, read_policy: ReadPolicy) -> RelatedIntents:
    """Build the search for the intents of others."""
    return RelatedIntents(
        recent,
        shared.embedder,
        read_policy,
        shared.clock,
        shared.pools[PoolName.CHECKS],
        min_score=shared.settings.cstp.intent.related_min_score,
        follows_others=shared.database_is_shared,
    )


def build_recent_intents(shared: SharedParts) -> RecentIntents:
    """Build the shared intents of the last day from the database. Raises QueryFailed."""
    store, embedder = SqlSharedIntentStore(shared.database), shared.embedder
    recent = RecentIntents(store, embedder.model, embedder.dimensions, shared.clock)
    # Before the server listens, so that the first announcement is told of them.
    recent.refresh()
    return recent
