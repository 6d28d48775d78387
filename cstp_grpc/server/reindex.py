"""Re-embeds a journal for the configured embedder, next to a server that uses another one."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, closing

from cstp_grpc.common.lazy_dataclass import dataclass
from cstp_grpc.contract.errors import ConfigError
from cstp_grpc.core.decisions.reindexing import adopt_prepared_vectors, prepare_vectors
from cstp_grpc.core.decisions.sql_change_log import SqlChangeLog
from cstp_grpc.core.decisions.sql_prepared_vectors import SqlPreparedVectorStore
from cstp_grpc.platform.config import Settings
from cstp_grpc.platform.storage.database import Database, open_database
from cstp_grpc.platform.storage.locks import AlreadyRunning, DataDirLock, ProcessWriteLock
from cstp_grpc.platform.storage.migration import current_revision, migrate_database, newest_revision
from cstp_grpc.platform.storage.writer import GroupCommitWriter
from cstp_grpc.server.wiring.embedding import build_configured_embedders

ProgressStart = Callable[[int], Callable[[int], object]]
"""Called with the number of decisions to embed; returns a function that is called with the size of each batch."""


@dataclass(frozen=True, slots=True)
class ReindexReport:
    """The result: the number of embedded decisions, the model, and whether searches already use it."""

    model: str
    embedded: int
    decisions: int
    in_use: bool


def reindex_journal(settings: Settings, start_progress: ProgressStart) -> ReindexReport:
    """Embed all decisions with the configured embedder, and continue an interrupted run.

    Searches use the new vectors at once if no server can be using the journal, otherwise from the next start of a
    server with these settings. Raises ConfigError, WeightsMissing, UnsuitableDatabase, QueryFailed and Unavailable.
    """
    with ExitStack() as opened:
        # Without the lock, a server has the journal open; it keeps using its own embedder.
        alone = try_lock(opened, settings)
        embedder = build_configured_embedders(settings.embedding, settings.data_dir).stored
        database = open_database(settings.storage_url, settings.storage.pool_size)
        opened.callback(database.close)
        # Workers write in turns, and so does this process: on SQLite it is one more writer.
        turn = None if database.path is None else opened.enter_context(closing(ProcessWriteLock(database.path)))
        prepare_schema(database, turn, alone=alone)
        writer = GroupCommitWriter(database, settings.storage.write_timeout_seconds, turn)
        opened.callback(writer.close)
        store, change_log = SqlPreparedVectorStore(database), SqlChangeLog(database)
        on_prepared = start_progress(store.count_unprepared(embedder.model))
        embedded = prepare_vectors(store, embedder, writer, change_log, on_prepared)
        # Other machines may use a PostgreSQL database, which the lock on this machine's folder does not show.
        in_use = alone and database.is_sqlite
        if in_use:
            adopt_prepared_vectors(store, embedder.model, writer, change_log)
        return ReindexReport(embedder.model, embedded, store.count_decisions(), in_use)


def try_lock(opened: ExitStack, settings: Settings) -> bool:
    """Take the lock on the data folder, so that no server starts meanwhile. Return False if a server has it."""
    try:
        opened.enter_context(DataDirLock(settings.data_dir))
    except AlreadyRunning:
        return False
    return True


def prepare_schema(database: Database, turn: ProcessWriteLock | None, *, alone: bool) -> None:
    """Migrate the database; while a server uses it, only check its version. Raises ConfigError."""
    if alone or not database.is_sqlite:
        migrate_database(database, turn)
    elif current_revision(database) != newest_revision():
        raise ConfigError("the server that runs is of another version: restart it, then reindex")
