"""Wiring of the journal of decisions and their search."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

from cstp_grpc.common.lazy_dataclass import dataclass
from cstp_grpc.common.measures import Measure, Readings, read_labelled, read_value
from cstp_grpc.contract.enums import INTENT_LAYER_AGENT
from cstp_grpc.core.audit.oversight import Oversight
from cstp_grpc.core.decisions.compaction import Compactor
from cstp_grpc.core.decisions.journal import Journal
from cstp_grpc.core.decisions.journal_reader import JournalFeed
from cstp_grpc.core.decisions.journal_transaction import CitationNotifier, JournalStores
from cstp_grpc.core.decisions.model import RemovalFilter
from cstp_grpc.core.decisions.read_policy import ReadPolicy
from cstp_grpc.core.decisions.search.chroma_process import ChildChromaServer, ChromaServer, SharedChromaServer
from cstp_grpc.core.decisions.search.decision_search import DecisionSearch, IndexUse
from cstp_grpc.core.decisions.search.index_supervisor import IndexFeeder, IndexFollower, IndexSupervisor
from cstp_grpc.core.decisions.search.matrix_file import MatrixFile
from cstp_grpc.core.decisions.search.matrix_sync import MatrixLoader, MatrixSync, PassageRefresher
from cstp_grpc.core.decisions.search.row_vectors import SharedVectorPool
from cstp_grpc.core.decisions.search.vector_matrix import VectorMatrix
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
from cstp_grpc.platform.storage.background_work import ExpiryTask, PeriodicTask
from cstp_grpc.platform.storage.revision_tokens import RevisionTokens
from cstp_grpc.platform.storage.subscriptions import ChangeFeed, WatchLimits
from cstp_grpc.platform.stream_limit import StreamLimit
from cstp_grpc.server.deployment import INDEX_FOLDER, MATRIX_FILE
from cstp_grpc.server.execution import PoolName
from cstp_grpc.server.open_services import INDEX_HEALTH
from cstp_grpc.server.server_module import Module, SharedParts

logger = logging.getLogger(__name__)

RETENTION_SECONDS: Final = 600.0
"""Interval of the search for expired decisions: retention is in days, so minutes do not matter."""
REMOVAL_BATCH: Final = 50
"""Maximum number of decisions that one transaction removes, each with its reviews, vectors and links. Chosen: other
writes wait for it."""


SAVE_SECONDS: Final = 600.0
"""Interval at which the matrix is saved if it changed much. Chosen: it writes 450 MB for 100 000 decisions."""
SHORT_LOAD: Final = 20_000
"""Maximum number of decisions that are loaded while the server serves. Chosen: the first searches wait for them, which
is half a second, while checks of guardrails are answered."""


@dataclass(frozen=True, slots=True)
class DecisionParts:
    """The module of decisions, and the parts of it that other modules use."""

    module: Module
    journal: Journal
    search: DecisionSearch
    background: SqlBackgroundReader
    tokens: RevisionTokens
    file: MatrixFile


def build_decisions_module(
    shared: SharedParts, citations: CitationNotifier | None, records: ConfidenceRecords
) -> DecisionParts:
    """Build the journal and its search; `citations` notifies agents that were given a failed decision."""
    settings, database, writer, embedder = shared.settings, shared.database, shared.writer, shared.embedder
    # Other stores of this process only read decisions.
    store = SqlDecisionStore(database, shared.read_policy, is_sole_writer=not shared.database_is_shared)
    change_log = SqlChangeLog(database, writer)
    # Most decisions have two passages. Growing would copy all vectors and leave gaps in memory.
    count = store.count() if shared.deployment.resident else 0
    matrix = build_matrix(shared, 2 * count)
    file = MatrixFile(settings.data_dir / MATRIX_FILE, store, embedder.model, matrix)
    # Workers share their vectors in memory instead, and only delete the file.
    maps_file = shared.deployment.vectors_memory is None
    matrix_sync = MatrixSync(store, embedder.model, matrix, file if maps_file else None)
    loader = MatrixLoader(SqlPreparedVectorStore(database), store, embedder, writer, change_log, matrix_sync)
    if shared.deployment.resident:
        # Before the server listens, as is everything that may take long; searches wait for the rest.
        begin = loader.complete_vectors if may_load_late(shared, count) else loader.load
        begin()
    index = build_index(shared, store, change_log, matrix)
    if index is None and shared.deployment.resident:
        # Without an index nothing reads the log. An index that is configured later is built from the journal.
        change_log.clear()
    tokens = RevisionTokens(store.identity())
    storage, run_blocking = settings.storage, shared.pools[PoolName.OTHERS].run
    # A job that the writer commits after its caller has timed out notifies no subscription, so they poll too.
    feed = JournalFeed(store, tokens, build_watch_limits(storage), storage.refresh_seconds, run_blocking)
    journal = build_journal(shared, store, change_log, citations, matrix, records, feed)
    exports = StreamLimit("exports", storage.exports_per_agent, "storage.exports_per_agent")
    thoughts = build_thoughts(shared, store)
    search = DecisionSearch(
        store,
        matrix,
        shared.query_embedder,
        None if index is None else IndexUse(index, settings.index.exact_limit, settings.index.overfetch),
        lambda token: matrix_sync.catch_up(tokens.read(token)),
        loader,
        shared.observers.searches,
    )
    limits = QueryLimits(settings.cstp.query.max_results, settings.cstp.query.min_score)
    compactor = Compactor(store, journal, embedder.model, shared.clock)
    oversight = build_oversight(shared)
    servicer = JournalService(journal, compactor, search, limits, thoughts, feed, exports, oversight, run_blocking)
    indexes = [] if index is None else [index]
    module = Module(
        servicers=[(journal_pb2_grpc.add_JournalServiceServicer_to_server, servicer)],
        late_background=[
            PassageRefresher(store, journal, embedder.model, loader.load),
            *indexes,
            *build_retention(shared, journal, thoughts),
            *build_saving(shared, loader, matrix_sync),
        ],
        begin_stop=[feed.close, *(each.begin_stop for each in indexes)],
        # The feed after the matrix: a watcher that is notified of a change finds it by a search.
        on_foreign_commit=[
            matrix_sync.refresh if shared.deployment.resident else loader.note_foreign_commit,
            feed.check_for_new,
        ],
        health={} if index is None else {INDEX_HEALTH: lambda: index.is_healthy},
        measures=[*build_search_measures(store, matrix, index), build_watcher_measure("decisions", feed)],
    )
    return DecisionParts(module, journal, search, SqlBackgroundReader(database, store), tokens, file)


def may_load_late(shared: SharedParts, count: int) -> bool:
    """Return whether the matrix is loaded after the server listens: soon done, and before an index compares it."""
    index = shared.settings.index
    is_indexed = index.mode == "http" or (index.mode == "embedded" and count >= index.exact_limit)
    return count <= SHORT_LOAD and not is_indexed and not shared.deployment.supervised


def build_matrix(shared: SharedParts, expected: int) -> VectorMatrix:
    """Build the matrix of vectors, in memory shared with the other processes if there is such memory."""
    memory, dimensions = shared.deployment.vectors_memory, shared.embedder.dimensions
    pool = None if memory is None else SharedVectorPool(memory, dimensions)
    return VectorMatrix(dimensions, shared.read_policy, pool, expected)


def build_search_measures(
    store: SqlDecisionStore, matrix: VectorMatrix, index: IndexSupervisor | None
) -> list[Measure]:
    """Build the figures of the vectors in memory and of the index, if there is one."""
    rows = Measure("matrix_rows", "Decisions whose vectors are in memory.", read_value(lambda: matrix.size))
    if index is None:
        return [rows]

    def read_lag() -> Readings:
        # Until it is ready it has no revision: `index_ready` reports that, and a lag of 0 would mislead.
        reached = index.ready_revision
        return {} if reached is None else {(): max(store.newest_revision() - reached, 0)}

    return [
        rows,
        Measure(
            "index_ready",
            "Whether the vector index serves searches, or is not needed yet.",
            read_value(lambda: index.is_healthy),
        ),
        Measure("index_lag_revisions", "Changes of the journal that the vector index does not have yet.", read_lag),
    ]


def build_watcher_measure(kind: str, feed: ChangeFeed[Any, Any]) -> Measure:
    """Build the figure of the watchers of a feed, which `kind` names among others."""
    return Measure("watchers", "Open streams of changes.", read_labelled(kind, lambda: feed.open_count), ("kind",))


def build_journal(
    shared: SharedParts,
    store: SqlDecisionStore,
    change_log: SqlChangeLog,
    citations: CitationNotifier | None,
    matrix: VectorMatrix,
    records: ConfidenceRecords,
    feed: JournalFeed,
) -> Journal:
    """Build the journal, which notifies the matrix, the observer and the feed of commits."""

    # The feed last: a watcher that is notified of a change finds it by a search.
    def apply_changes(rows: Sequence[IndexRow]) -> None:
        matrix.apply(rows)
        records.note_changes(row.agent for row in rows)
        feed.notify()

    def forget_erased(erased: Sequence[ErasedRow]) -> None:
        matrix.forget(erased)
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


def build_saving(shared: SharedParts, loader: MatrixLoader, matrix_sync: MatrixSync) -> list[PeriodicTask]:
    """Build the saving of the matrix, which a process does that uses its data folder alone."""
    if shared.deployment.supervised:
        return []

    def save() -> None:
        loader.load()
        matrix_sync.save()

    return [PeriodicTask("matrix-file", save, SAVE_SECONDS, logger, "the matrix is not saved for the next start")]


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


def build_index(
    shared: SharedParts, store: SqlDecisionStore, change_log: SqlChangeLog, matrix: VectorMatrix
) -> IndexSupervisor | None:
    """Build the configured index without starting it. Return None if search is always exact."""
    embedder, settings, feeds = shared.embedder, shared.settings, shared.deployment.feeds_index
    folder, server, start_size = settings.data_dir / INDEX_FOLDER, ChromaServer(settings.index.url), 0
    if settings.index.mode == "off":
        return None
    if settings.index.mode == "embedded":
        server = ChildChromaServer(folder) if feeds else SharedChromaServer(folder)
        start_size = settings.index.exact_limit
    feeding = IndexFeeder(store, change_log, embedder.model) if feeds else IndexFollower(store, embedder.model)
    return IndexSupervisor(server, feeding, matrix, embedder.model, embedder.dimensions, start_size=start_size)
