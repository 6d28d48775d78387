"""Keeps the vector matrix in step with the journal, and embeds decisions that lack a vector."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import TypeVar

from cstp_grpc.contract.errors import Unavailable
from cstp_grpc.core.decisions.journal import Journal
from cstp_grpc.core.decisions.passages import PreparedTexts
from cstp_grpc.core.decisions.reindexing import adopt_prepared_vectors
from cstp_grpc.core.decisions.search.matrix_file import JournalPosition, MatrixFile
from cstp_grpc.core.decisions.search.vector_matrix import VectorMatrix
from cstp_grpc.core.decisions.sql_change_log import SqlChangeLog
from cstp_grpc.core.decisions.sql_prepared_vectors import SqlPreparedVectorStore
from cstp_grpc.core.decisions.sql_store import SqlDecisionStore
from cstp_grpc.platform.embedding.embedder import Embedder
from cstp_grpc.platform.storage.unit_of_work import UnitOfWork
from cstp_grpc.platform.storage.writer import GroupCommitWriter

logger = logging.getLogger(__name__)

T = TypeVar("T")

SYNC_BATCH = 1000
"""Rows read at a time. Chosen: 1000 vectors of 384 float32 add 1.5 MB to the matrix."""


class MatrixSync:
    """Copies changes of the journal into the matrix."""

    def __init__(
        self, store: SqlDecisionStore, model: str, matrix: VectorMatrix, file: MatrixFile | None = None
    ) -> None:
        self._store = store
        self._model = model
        self._matrix = matrix
        self._file = file
        # Not the newest revision of the matrix: this server may have put in a change of its own before it saw an
        # earlier one of another server. Here revisions come in their order, because the outbox shows them so.
        self._revision = -1
        self._erased_revision = -1
        # Lets one thread at a time copy, and guards writes of `_revision`. The matrix takes its own lock inside this
        # one; nothing takes them in the other order.
        self._lock = threading.Lock()

    def refresh(self) -> int:
        """Copy all changes since the last call, at first everything, and return how many. Raises QueryFailed."""
        with self._lock:
            return self._refresh()

    def catch_up(self, revision: int) -> None:
        """Wait until the matrix contains the journal up to a revision.

        Raises QueryFailed, and Unavailable if the journal has not reached that revision.
        """
        # Without the lock: the revision only grows, and reading an int is atomic.
        if self._revision >= revision:
            return
        with self._lock:
            if self._revision < revision:
                # Read before the refresh, which then finds at least this revision. The newest change may have no row
                # (a decision without a vector yet), so `_revision` alone could stay below the requested one.
                newest = self._store.newest_revision()
                self._refresh()
                if max(newest, self._revision) < revision:
                    raise Unavailable("the journal has not come to that revision; try again")

    def save(self) -> None:
        """Save the matrix in its file, if it has one and has changed much. Raises QueryFailed and OSError."""
        if self._file is not None:
            self.refresh()
            # Without the lock: the matrix contains at least this.
            self._file.save_if_due(JournalPosition(self._revision, self._erased_revision))

    def _refresh(self) -> int:
        if self._revision < 0 and self._file is not None:
            self._revision, self._erased_revision = self._file.restore()
        count = 0
        for rows in split_into_batches(self._store.index_rows(self._model, self._revision), SYNC_BATCH):
            # In this order: if applying fails, the next call reads the same rows again, and the matrix ignores those
            # that it has.
            self._matrix.apply(rows)
            self._revision = rows[-1].revision
            count += len(rows)
        return count + self._refresh_erased()

    def _refresh_erased(self) -> int:
        # With a revision of its own: a change and a deletion are read one after the other, and what is committed in
        # between must not be skipped by either.
        erased = self._store.erased_rows(self._erased_revision)
        if erased:
            self._matrix.forget(erased)
            self._erased_revision = erased[-1].revision
        return len(erased)


def split_into_batches(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yield items in lists of `size`; the last may be shorter."""
    iterator = iter(items)
    while batch := list(islice(iterator, size)):
        yield batch


EMBED_BATCH = 256
"""Decisions embedded for each transaction. Chosen: a kill loses the work of at most one batch."""


def embed_missing_vectors(
    store: SqlDecisionStore,
    embedder: Embedder,
    writer: GroupCommitWriter,
    change_log: SqlChangeLog,
    is_stopping: Callable[[], bool] = lambda: False,
) -> int:
    """Embed all decisions that have no vectors of this model, and return how many.

    It can be interrupted at any time and continued later. Raises QueryFailed and Unavailable.
    """
    count = 0
    # Each batch is committed by itself, and the query finds only decisions without vectors: that is the whole state.
    while not is_stopping() and (missing := store.unembedded_decisions(embedder.model, EMBED_BATCH)):
        prepared = PreparedTexts(embedder)
        prepared.prepare(missing)
        writer.run(put_vectors_job(store, embedder.model, prepared, [item.id for item in missing], change_log))
        count += len(missing)
        logger.info("embedded %d decisions with %s", count, embedder.model)
    return count


def put_vectors_job(
    store: SqlDecisionStore, model: str, prepared: PreparedTexts, ids: Sequence[str], change_log: SqlChangeLog
) -> Callable[[UnitOfWork], None]:
    def job(unit_of_work: UnitOfWork) -> None:
        # Other servers may have changed or deleted some since they were read, and now wait until this one is done.
        change_log.hold(unit_of_work)
        present = store.load(unit_of_work, ids)
        store.put_vectors(unit_of_work, model, [prepared.vectors_of(entry.decision) for entry in present.values()])

    return job


class MissingVectors:
    """Gives decisions vectors of the embedder's model."""

    def __init__(
        self,
        prepared: SqlPreparedVectorStore,
        store: SqlDecisionStore,
        embedder: Embedder,
        writer: GroupCommitWriter,
        change_log: SqlChangeLog,
    ) -> None:
        self._prepared = prepared
        self._store = store
        self._embedder = embedder
        self._writer = writer
        self._change_log = change_log

    def complete(self, is_stopping: Callable[[], bool] = lambda: False) -> int:
        """Give all decisions that lack vectors some, which may take long, and return their number.

        It ends early if `is_stopping()`.
        Raises QueryFailed and Unavailable.
        """
        adopted = adopt_prepared_vectors(self._prepared, self._embedder.model, self._writer, self._change_log)
        return adopted + embed_missing_vectors(self._store, self._embedder, self._writer, self._change_log, is_stopping)


class MatrixLoader:
    """Gives every decision vectors of the embedder's model, and loads them into the matrix."""

    def __init__(self, missing: MissingVectors, matrix_sync: MatrixSync) -> None:
        self._missing = missing
        self._matrix_sync = matrix_sync
        # Held while loading, so that a search that begins meanwhile finds everything too.
        self._lock = threading.Lock()
        self._changes = 1
        """Counts the commits of other processes that were noticed."""
        self._loaded = 0
        """The value of `_changes` up to which everything is loaded."""

    @property
    def is_current(self) -> bool:
        return self._loaded == self._changes

    def load(self) -> None:
        """Load commits since the last call, at first everything. Raises QueryFailed and Unavailable."""
        # Without the lock: the matrix has everything before the numbers are equal.
        if self.is_current:
            return
        with self._lock:
            # Read before loading: changes that arrive meanwhile are loaded by the next call.
            changes = self._changes
            if self._loaded != changes:
                self._load()
                self._loaded = changes

    def note_foreign_commit(self) -> None:
        """Make the next call of `load` look at the journal again, because another process has written to it.

        One thread at a time may call this.
        """
        self._changes += 1

    def _load(self) -> None:
        self._missing.complete()
        self._matrix_sync.refresh()


REFRESH_BATCH = 16
"""Decisions refreshed in one transaction. Chosen: embedding them takes about as long as a few searches, after which
the thread pauses."""

REFRESH_PAUSE_SHARE = 1.0
"""The pause after a batch, as a share of the time that it took, so that calls get half of a core at least."""

RETRY_SECONDS = 60.0
"""Seconds until the next attempt after a failure."""


class PassageRefresher:
    """Computes vectors and terms that were made by older rules again; the old ones serve searches meanwhile.

    It works in a thread of low demand, batch by batch, and is done when none is left. What it did is kept if it is
    interrupted. `prepare` runs before, in the same thread.
    """

    def __init__(
        self, store: SqlDecisionStore, journal: Journal, model: str, prepare: Callable[[], object] = lambda: None
    ) -> None:
        self._prepare = prepare
        self._store = store
        self._journal = journal
        self._model = model
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="passages", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread and wait for the batch in progress."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def refresh_all(self) -> int:
        """Refresh outdated decisions until none is left or it is stopped; return how many decisions were refreshed.

        Raises QueryFailed and Unavailable.
        """
        count = 0
        while not self._stopping.is_set():
            begun = time.monotonic()
            outdated = self._store.outdated_decisions(self._model, REFRESH_BATCH)
            if not outdated:
                break
            self._journal.refresh_passages(outdated)
            count += len(outdated)
            self._stopping.wait((time.monotonic() - begun) * REFRESH_PAUSE_SHARE)
        return count

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._prepare()
                count = self.refresh_all()
            except Exception:  # searches load what is missing, and later attempts the rest
                logger.exception("passages could not be loaded and refreshed; next attempt in %d s", RETRY_SECONDS)
                self._stopping.wait(RETRY_SECONDS)
            else:
                if count:
                    logger.info("refreshed the passages of %d decisions", count)
                return
