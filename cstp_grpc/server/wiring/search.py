"""Wiring of the search for decisions: in the memory of each server, or by an engine that servers share."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

from cstp_grpc.common.lazy_dataclass import dataclass, field
from cstp_grpc.common.measures import Measure, Readings, read_value
from cstp_grpc.core.decisions.search.matrix_file import MatrixFile
from cstp_grpc.core.decisions.search.matrix_sync import MatrixLoader, MatrixSync, MissingVectors
from cstp_grpc.core.decisions.search.row_source import MatrixSource, RowSource
from cstp_grpc.core.decisions.search.row_vectors import SharedVectorPool
from cstp_grpc.core.decisions.search.search_engine import EngineFeeder, EngineSource, SearchEngine, require_revision
from cstp_grpc.core.decisions.search.vector_matrix import VectorMatrix
from cstp_grpc.core.decisions.sql_store import SqlDecisionStore
from cstp_grpc.core.decisions.store import ErasedRow, IndexRow
from cstp_grpc.platform.storage.background_work import PeriodicTask
from cstp_grpc.server.deployment import MATRIX_FILE
from cstp_grpc.server.open_services import SEARCH_HEALTH
from cstp_grpc.server.server_module import BackgroundPart, SharedParts

logger = logging.getLogger(__name__)

SHORT_LOAD: Final = 20_000
"""Maximum number of decisions that are loaded while the server serves. Chosen: the first searches wait for them, which
is half a second, while checks of guardrails are answered."""


SAVE_SECONDS: Final = 600.0
"""Interval at which the matrix is saved if it changed much. Chosen: it writes 450 MB for 100 000 decisions."""


@dataclass(frozen=True, slots=True)
class SearchParts:
    """Where searches get their rows, and what keeps these in step with the journal."""

    source: RowSource
    require_revision: Callable[[int], None]
    """Waits until searches find everything up to a revision."""
    prepare: Callable[[], object]
    """Runs in the background after the start."""
    apply: Callable[[Sequence[IndexRow]], object]
    forget: Callable[[Sequence[ErasedRow]], object]
    on_foreign_commit: Callable[[], object]
    discard: Callable[[], object]
    """Deletes copies of decisions outside of the journal, which may contain erased ones."""
    measures: Sequence[Measure]
    background: Sequence[BackgroundPart] = ()
    health: Mapping[str, Callable[[], bool]] = field(default_factory=dict)


def build_search_parts(shared: SharedParts, store: SqlDecisionStore, missing: MissingVectors) -> SearchParts:
    """Build the configured kind of search. Raises UnsuitableDatabase for a database that cannot be the engine."""
    if shared.settings.search.engine == "memory":
        return build_memory_search(shared, store, missing)
    return build_engine_search(shared, store, missing, build_engine(shared, store))


def build_memory_search(shared: SharedParts, store: SqlDecisionStore, missing: MissingVectors) -> SearchParts:
    """Build the search in the memory of this process, which loads it now if that may take long."""
    resident = shared.deployment.resident
    # Most decisions have two passages. Growing would copy all vectors and leave gaps in memory.
    count = store.count() if resident else 0
    matrix = build_matrix(shared, 2 * count)
    file = MatrixFile(shared.settings.data_dir / MATRIX_FILE, store, shared.embedder.model, matrix)
    # Workers share their vectors in memory instead, and only delete the file.
    maps_file = shared.deployment.vectors_memory is None
    sync = MatrixSync(store, shared.embedder.model, matrix, file if maps_file else None)
    loader = MatrixLoader(missing, sync)
    if resident:
        # Before the server listens, as is everything that may take long; searches wait for the rest.
        if count > SHORT_LOAD or shared.deployment.supervised:
            loader.load()
        else:
            missing.complete()
    rows = Measure("matrix_rows", "Decisions whose vectors are in memory.", read_value(lambda: matrix.size))
    return SearchParts(
        MatrixSource(matrix, loader),
        sync.catch_up,
        loader.load,
        matrix.apply,
        matrix.forget,
        sync.refresh if resident else loader.note_foreign_commit,
        file.discard,
        [rows],
        build_saving(shared, loader, sync),
    )


def build_saving(shared: SharedParts, loader: MatrixLoader, sync: MatrixSync) -> list[PeriodicTask]:
    """Build the saving of the matrix, which a process does that uses its data folder alone."""
    if shared.deployment.supervised:
        return []

    def save() -> None:
        loader.load()
        sync.save()

    return [PeriodicTask("matrix-file", save, SAVE_SECONDS, logger, "the matrix is not saved for the next start")]


def build_matrix(shared: SharedParts, expected: int) -> VectorMatrix:
    """Build the matrix of vectors, in memory shared with the other processes if there is such memory."""
    memory, dimensions = shared.deployment.vectors_memory, shared.embedder.dimensions
    pool = None if memory is None else SharedVectorPool(memory, dimensions)
    return VectorMatrix(dimensions, shared.read_policy, pool, expected)


def build_engine(shared: SharedParts, store: SqlDecisionStore) -> SearchEngine:
    # Neither is loaded without need.
    from cstp_grpc.core.decisions.search.chroma_engine import ChromaEngine
    from cstp_grpc.core.decisions.search.sql_pgvector import PgvectorEngine, open_engine_database

    search, embedder, journal = shared.settings.search, shared.embedder, store.identity()
    if search.engine == "chroma" and search.url is not None:
        lock = partial(shared.database.try_lock, "search")
        return ChromaEngine(search.url, journal, embedder.model, shared.read_policy, lock)
    database = open_engine_database(search.url or shared.settings.storage_url, shared.settings.storage.pool_size)
    return PgvectorEngine(database, journal, embedder.model, embedder.dimensions, shared.read_policy)


def check_engine(engine: str, url: str) -> None:
    """Check that an engine answers. Raises EngineFailed."""
    from cstp_grpc.core.decisions.search import chroma_engine, sql_pgvector

    check = chroma_engine.check_server if engine == "chroma" else sql_pgvector.check_database
    check(url)


def build_engine_search(
    shared: SharedParts, store: SqlDecisionStore, missing: MissingVectors, engine: SearchEngine
) -> SearchParts:
    """Build the search by an engine that servers share, and the feeding of it."""
    # Of the time when this data folder was searched in memory.
    (shared.settings.data_dir / MATRIX_FILE).unlink(missing_ok=True)
    embedder = shared.embedder
    feeder = EngineFeeder(engine, store, embedder.model, missing.complete)

    def note_change(_: object) -> None:
        feeder.wake()

    def read_lag() -> Readings:
        # Until it is complete it has no revision: `index_ready` reports that, and a lag of 0 would mislead.
        reached = feeder.reached
        return {} if reached is None else {(): max(store.newest_revision() - reached, 0)}

    def is_ready() -> bool:
        return feeder.reached is not None

    return SearchParts(
        EngineSource(
            engine, store, embedder.model, embedder.dimensions, shared.read_policy, lambda: feeder.lacks_vectors
        ),
        lambda revision: require_revision(store, revision),
        lambda: None,
        note_change,
        note_change,
        feeder.wake,
        feeder.wake,
        [
            Measure("index_ready", "Whether the search engine has the whole journal.", read_value(is_ready)),
            Measure(
                "index_lag_revisions", "Changes of the journal that the search engine does not have yet.", read_lag
            ),
        ],
        [feeder],
        {SEARCH_HEALTH: is_ready},
    )
