"""Wiring of the journal of decisions and their search."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Final

from cstp_grpc.common.lazy_dataclass import dataclass
from cstp_grpc.common.measures import Measure, read_labelled
from cstp_grpc.contract.enums import INTENT_LAYER_AGENT
from cstp_grpc.core.audit.oversight import Oversight
from cstp_grpc.core.decisions.compaction import Compactor
from cstp_grpc.core.decisions.journal import Journal
from cstp_grpc.core.decisions.journal_reader import JournalFeed
from cstp_grpc.core.decisions.journal_transaction import CitationNotifier, JournalStores
from cstp_grpc.core.decisions.model import RemovalFilter
from cstp_grpc.core.decisions.read_policy import ReadPolicy
from cstp_grpc.core.decisions.search.decision_search import DecisionSearch
from cstp_grpc.core.decisions.search.matrix_sync import MissingVectors, PassageRefresher
from cstp_grpc.core.decisions.servicer import JournalService, QueryLimits
from cstp_grpc.core.decisions.sql_background import SqlBackgroundReader
from cstp_grpc.core.decisions.sql_change_log import SqlChangeLog
from cstp_grpc.core.decisions.sql_history import SqlHistoryStore
from cstp_grpc.core.decisions.sql_prepared_vectors import SqlPreparedVectorStore
from cstp_grpc.core.decisions.sql_store import SqlDecisionStore
from cstp_grpc.core.decisions.sql_thoughts import SqlThoughtStore
from cstp_grpc.core.decisions.store import ErasedRow, IndexRow
from cstp_grpc.core.decisions.thoughts import ThoughtLimits, Thoughts
from cstp_grpc.gen.cstp.v1 import journal_pb2_grpc
from cstp_grpc.modules.calibration.confidence_records import ConfidenceRecords
from cstp_grpc.platform.config import Settings
from cstp_grpc.platform.config.settings import StorageSettings
from cstp_grpc.platform.storage.background_work import ExpiryTask
from cstp_grpc.platform.storage.revision_tokens import RevisionTokens
from cstp_grpc.platform.storage.subscriptions import ChangeFeed, WatchLimits
from cstp_grpc.platform.stream_limit import StreamLimit
from cstp_grpc.server.execution import PoolName
from cstp_grpc.server.server_module import Module, SharedParts
from cstp_grpc.server.wiring.search import SearchParts, build_search_parts

logger = logging.getLogger(__name__)

RETENTION_SECONDS: Final = 600.0
"""Interval of the search for expired decisions: retention is in days, so minutes do not matter."""
REMOVAL_BATCH: Final = 50
"""Maximum number of decisions that one transaction removes, each with its reviews, vectors and links. Chosen: other
writes wait for it."""


@dataclass(frozen=True, slots=True)
class DecisionParts:
    """The module of decisions, and the parts of it that other modules use."""

    module: Module
    journal: Journal
    search: DecisionSearch
    background: SqlBackgroundReader
    tokens: RevisionTokens
    discard_copies: Callable[[], object]
    """Deletes copies of decisions outside of the journal, which may contain erased ones."""


def build_decisions_module(
    shared: SharedParts, citations: CitationNotifier | None, records: ConfidenceRecords
) -> DecisionParts:
    """Build the journal and its search; `citations` notifies agents that were given a failed decision."""
    settings, database, writer, embedder = shared.settings, shared.database, shared.writer, shared.embedder
    # Other stores of this process only read decisions.
    store = SqlDecisionStore(database, shared.read_policy, is_sole_writer=not shared.database_is_shared)
    change_log = SqlChangeLog(database)
    missing = MissingVectors(SqlPreparedVectorStore(database), store, embedder, writer, change_log)
    parts = build_search_parts(shared, store, missing)
    tokens = RevisionTokens(store.identity())
    storage, run_blocking = settings.storage, shared.pools[PoolName.OTHERS].run
    # A job that the writer commits after its caller has timed out notifies no subscription, so they poll too.
    feed = JournalFeed(store, tokens, build_watch_limits(storage), storage.refresh_seconds, run_blocking)
    journal = build_journal(shared, store, change_log, citations, parts, records, feed)
    exports = StreamLimit("exports", storage.exports_per_agent, "storage.exports_per_agent")
    thoughts = build_thoughts(shared, store)
    search = DecisionSearch(
        store,
        parts.source,
        shared.query_embedder,
        lambda token: parts.require_revision(tokens.read(token)),
        shared.observers.searches,
    )
    limits = QueryLimits(settings.cstp.query.max_results, settings.cstp.query.min_score)
    compactor = Compactor(store, journal, embedder.model, shared.clock)
    oversight = build_oversight(shared)
    servicer = JournalService(journal, compactor, search, limits, thoughts, feed, exports, oversight, run_blocking)
    module = Module(
        servicers=[(journal_pb2_grpc.add_JournalServiceServicer_to_server, servicer)],
        late_background=[
            PassageRefresher(store, journal, embedder.model, parts.prepare),
            *parts.background,
            *build_retention(shared, journal, thoughts),
        ],
        begin_stop=[feed.close],
        # The feed after the search: a watcher that is notified of a change finds it by a search.
        on_foreign_commit=[parts.on_foreign_commit, feed.check_for_new],
        health=parts.health,
        measures=[*parts.measures, build_watcher_measure("decisions", feed)],
    )
    return DecisionParts(module, journal, search, SqlBackgroundReader(database, store), tokens, parts.discard)


def build_watcher_measure(kind: str, feed: ChangeFeed[Any, Any]) -> Measure:
    """Build the figure of the watchers of a feed, which `kind` names among others."""
    return Measure("watchers", "Open streams of changes.", read_labelled(kind, lambda: feed.open_count), ("kind",))


def build_journal(
    shared: SharedParts,
    store: SqlDecisionStore,
    change_log: SqlChangeLog,
    citations: CitationNotifier | None,
    search: SearchParts,
    records: ConfidenceRecords,
    feed: JournalFeed,
) -> Journal:
    """Build the journal, which notifies the search, the observer and the feed of commits."""

    # The feed last: a watcher that is notified of a change finds it by a search.
    def apply_changes(rows: Sequence[IndexRow]) -> None:
        search.apply(rows)
        records.note_changes(row.agent for row in rows)
        feed.notify()

    def forget_erased(erased: Sequence[ErasedRow]) -> None:
        search.forget(erased)
        records.note_deletions()
        feed.notify()

    stores = JournalStores(store, SqlHistoryStore(shared.database), change_log)
    return Journal(
        stores, shared.writer, shared.embedder, shared.sink, shared.clock, apply_changes, citations, forget_erased
    )


def build_thoughts(shared: SharedParts, store: SqlDecisionStore) -> Thoughts:
    settings, days = shared.settings.thoughts, shared.settings.retention.thought_days
    kept = None if days is None else timedelta(days=days)
    limits = ThoughtLimits(settings.max_characters, settings.per_target, settings.per_agent, kept)
    return Thoughts(SqlThoughtStore(shared.database), store, shared.writer, shared.clock, limits)


def build_retention(shared: SharedParts, journal: Journal, thoughts: Thoughts) -> list[ExpiryTask]:
    """Build the removal of thoughts, and of decisions that did not change, for as long as the settings say."""
    complaint = "expired thoughts are not deleted"
    expiry = ExpiryTask("thought-retention", thoughts.remove_expired, RETENTION_SECONDS, logger, complaint)
    days = shared.settings.retention.decision_days
    if days is None:
        return [expiry]

    def remove_batch() -> bool:
        # Nodes stay as long as the Intent Layer has them; it would only copy them again.
        old = RemovalFilter(except_agent=INTENT_LAYER_AGENT, unchanged_since=shared.clock() - timedelta(days=days))
        agent = shared.settings.agent.name
        return journal.remove(old, REMOVAL_BATCH, "expired", agent, "") == REMOVAL_BATCH

    complaint = "expired decisions are not deleted"
    return [expiry, ExpiryTask("decision-retention", remove_batch, RETENTION_SECONDS, logger, complaint)]


def build_watch_limits(storage: StorageSettings) -> WatchLimits:
    return WatchLimits(
        storage.max_watchers,
        storage.watchers_per_agent,
        "storage.max_watchers",
        "storage.watchers_per_agent",
        storage.stalled_watch_seconds,
    )


def build_oversight(shared: SharedParts) -> Oversight:
    """Build what permits and records reads of every agent's records."""
    return Oversight(shared.sink if shared.settings.audit.enabled else None, shared.clock)


def build_read_policy(settings: Settings) -> ReadPolicy:
    # Also peers without a token in the settings: they may have one that was created while servers run.
    named = [peer.name for peer in settings.federation.peers]
    peers = [*named, *(token.name for token in settings.auth.tokens if token.peer)]
    share = settings.federation.share
    return ReadPolicy.of(peers, share.categories, share.tags)
