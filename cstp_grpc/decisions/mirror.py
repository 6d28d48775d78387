"""Keeping the vector matrix abreast of the journal, which several servers may change."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeVar

from cstp_grpc.decisions.matrix import VectorMatrix
from cstp_grpc.decisions.store import DecisionStore

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

    def refresh(self) -> int:
        """Take over all changes since the last time, at first everything, and return how many. Raises QueryFailed.

        One thread at a time may call this.
        """
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
