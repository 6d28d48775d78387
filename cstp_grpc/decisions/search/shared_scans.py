"""Scans of all rows that estimate the scores of several queries at once.

Reading the codes of all rows takes most of the time of a scan, so 16 queries together take three times as long as one.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from cstp_grpc.decisions.search.int8_codes import QuantizedVectors, Scores
from cstp_grpc.decisions.search.row_vectors import ParallelDotProduct, RowVectors
from cstp_grpc.decisions.store import Vector


@dataclass(frozen=True, slots=True)
class Scan:
    """The estimated scores of the first `size` rows of `vectors`, and by how much they may be off, for each query."""

    vectors: RowVectors
    size: int
    estimates: Scores
    bounds: Scores


class QueryBatch:
    """Queries whose scores are estimated in one scan, as soon as the first of them needs it. Safe for many threads."""

    def __init__(self, queries: Sequence[Vector]) -> None:
        self._queries = {query.tobytes(): query for query in queries}
        self.places = {key: place for place, key in enumerate(self._queries)}
        """The place of each query in the batch, by its bytes."""
        # Held during the scan, so that others of the batch wait for its result.
        self._lock = threading.Lock()
        self._scan: Scan | None = None

    def scan(self, vectors: RowVectors, size: int, scorer: ParallelDotProduct) -> Scan:
        """Return a scan of at least `size` rows."""
        with self._lock:
            scan = self._scan
            if scan is None or scan.vectors is not vectors or scan.size < size:
                # Only now: most queries are of journals that are too small for a scan.
                rounded = QuantizedVectors.of(np.array(list(self._queries.values())))
                estimates = vectors.estimates(size, rounded, scorer)
                # Afterwards, since the bounds are of all rows that have codes.
                scan = self._scan = Scan(vectors, size, estimates, vectors.error_bounds(rounded))
            return scan


class SharedScans:
    """Estimates scores, for queries that are expected together in one scan. Safe for many threads."""

    def __init__(self, scorer: ParallelDotProduct) -> None:
        self._scorer = scorer
        # Read and written without a lock: each operation on the dict is atomic, and a query that is found in no batch,
        # or in that of another caller, gets the same estimates.
        self._expected: dict[bytes, QueryBatch] = {}

    @contextmanager
    def expect(self, queries: Sequence[Vector]) -> Iterator[None]:
        """Scan for all of the queries when one of them needs it, until the end of the block.

        Those that are expected already, such as by an outer block, stay with the queries beside them.
        """
        batch = QueryBatch(queries)
        for key in batch.places:
            self._expected.setdefault(key, batch)
        try:
            yield
        finally:
            for key in batch.places:
                if self._expected.get(key) is batch:
                    self._expected.pop(key, None)

    def estimates(self, vectors: RowVectors, size: int, query: Vector) -> tuple[Scores, float]:
        """Return the estimated scores of the first `size` rows, and by how much they may be off."""
        key = query.tobytes()
        batch = self._expected.get(key) or QueryBatch([query])
        scan, place = batch.scan(vectors, size, self._scorer), batch.places[key]
        return scan.estimates[place, :size], float(scan.bounds[place])
