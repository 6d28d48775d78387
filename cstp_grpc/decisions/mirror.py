"""Keeping the vector matrix abreast of the journal, which several servers may change."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeVar

from cstp_grpc.decisions.matrix import VectorMatrix
from cstp_grpc.decisions.store import DecisionStore
from cstp_grpc.errors import Unavailable

T = TypeVar("T")

BATCH = 1000
"""How many rows are in memory at once beside the matrix."""


class Mirror:
    """Takes over into the matrix what the journal has."""

    def __init__(self, store: DecisionStore, model: str, matrix: VectorMatrix) -> None:
        self._store = store
        self._model = model
        self._matrix = matrix
        # Not the newest revision of the matrix: this server may have put in a change of its own before it saw an
        # earlier one of another server. Here revisions come in their order, because the outbox shows them so.
        self._revision = -1
        self._lock = threading.Lock()

    def refresh(self) -> int:
        """Take over all changes since the last time, at first everything, and return how many. Raises QueryFailed."""
        with self._lock:
            return self._refresh()

    def catch_up(self, revision: int) -> None:
        """Return when the matrix has what the journal had at a revision.

        Raises QueryFailed, and Unavailable if the journal has not come that far.
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
        for rows in batches(self._store.index_rows(self._model, self._revision), BATCH):
            self._matrix.apply(rows)
            self._revision = rows[-1].revision
            count += len(rows)
        return count


def batches(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yield items in lists of `size`; the last may be shorter."""
    iterator = iter(items)
    while batch := list(islice(iterator, size)):
        yield batch
