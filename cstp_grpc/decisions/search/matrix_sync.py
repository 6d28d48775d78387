"""Keeps the vector matrix in step with the journal, and embeds decisions that lack a vector."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import TypeVar

from cstp_grpc.decisions.search.vector_matrix import VectorMatrix
from cstp_grpc.decisions.store import DecisionStore, Vector
from cstp_grpc.embedding.embedder import Embedder
from cstp_grpc.errors import Unavailable
from cstp_grpc.storage.unit_of_work import UnitOfWork
from cstp_grpc.storage.writer import GroupCommitWriter

T = TypeVar("T")

SYNC_BATCH = 1000
"""How many rows are in memory at once beside the matrix."""


class MatrixSync:
    """Copies changes of the journal into the matrix."""

    def __init__(self, store: DecisionStore, model: str, matrix: VectorMatrix) -> None:
        self._store = store
        self._model = model
        self._matrix = matrix
        # Not the newest revision of the matrix: this server may have put in a change of its own before it saw an
        # earlier one of another server. Here revisions come in their order, because the outbox shows them so.
        self._revision = -1
        self._lock = threading.Lock()

    def refresh(self) -> int:
        """Copy all changes since the last call, at first everything, and return how many. Raises QueryFailed."""
        with self._lock:
            return self._refresh()

    def catch_up(self, revision: int) -> None:
        """Wait until the matrix contains the journal up to a revision.

        Raises QueryFailed, and Unavailable if the journal has not reached that revision.
        """
        if self._revision >= revision:
            return
        with self._lock:
            if self._revision < revision:
                # Asked first, so that what the refresh finds is at least of this revision.
                newest = self._store.newest_revision()
                self._refresh()
                if max(newest, self._revision) < revision:
                    raise Unavailable("the journal has not come to that revision; try again")

    def _refresh(self) -> int:
        count = 0
        for rows in split_into_batches(self._store.index_rows(self._model, self._revision), SYNC_BATCH):
            self._matrix.apply(rows)
            self._revision = rows[-1].revision
            count += len(rows)
        return count


def split_into_batches(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yield items in lists of `size`; the last may be shorter."""
    iterator = iter(items)
    while batch := list(islice(iterator, size)):
        yield batch


logger = logging.getLogger(__name__)

EMBED_BATCH = 256


def embed_missing_vectors(store: DecisionStore, embedder: Embedder, writer: GroupCommitWriter) -> int:
    """Embed all decisions that have no vector of this model, and return how many.

    It can be interrupted at any time and continued later. Raises QueryFailed and Unavailable.
    """
    count = 0
    while stale := store.stale_vectors(embedder.model, EMBED_BATCH):
        vectors = embedder.embed([text for _, text in stale])
        pairs = [(decision_id, vector) for (decision_id, _), vector in zip(stale, vectors, strict=True)]
        writer.run(put_vectors_job(store, embedder.model, pairs))
        count += len(stale)
        logger.info("embedded %d decisions with %s", count, embedder.model)
    return count


def put_vectors_job(
    store: DecisionStore, model: str, vectors: Sequence[tuple[str, Vector]]
) -> Callable[[UnitOfWork], None]:
    """Return the job that stores vectors."""
    return lambda unit_of_work: store.put_vectors(unit_of_work, model, vectors)
