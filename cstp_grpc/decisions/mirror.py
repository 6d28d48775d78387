"""Keeping the vector matrix abreast of the journal, which several servers may change."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeVar

from cstp_grpc.decisions.matrix import VectorMatrix
from cstp_grpc.decisions.store import DecisionStore
from cstp_grpc.storage.periodic import Periodic

logger = logging.getLogger(__name__)

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


class MirrorRefresher:
    """Refreshes a mirror in a thread; needed where other servers write to the same journal."""

    def __init__(self, mirror: Mirror, interval: float) -> None:
        """Prepare to refresh every `interval` seconds."""
        self._mirror = mirror
        self._interval = interval
        complaint = "changes by other servers are not seen"
        self._refreshing = Periodic("mirror", self._refresh, interval, logger, complaint, delay=interval)

    def start(self) -> None:
        """Begin."""
        self._refreshing.start()

    def stop(self) -> None:
        """End, and wait for a refresh that is going on."""
        self._refreshing.stop()

    def _refresh(self) -> float:
        self._mirror.refresh()
        return self._interval


def batches(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yield items in lists of `size`; the last may be shorter."""
    iterator = iter(items)
    while batch := list(islice(iterator, size)):
        yield batch
