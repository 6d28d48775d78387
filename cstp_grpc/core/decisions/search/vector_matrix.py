"""A copy of the journal's vectors and words in memory, for exact search under filters.

Rows are written once and then only read. A change of a decision appends a row and marks the old one as dead, in a
snapshot that replaces the previous one as a whole: a reader sees each decision exactly once, in one state, without
locks.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager

import numpy as np

from cstp_grpc.common.lazy_dataclass import dataclass, field
from cstp_grpc.core.decisions.model import DecisionFilter
from cstp_grpc.core.decisions.read_policy import ReadPolicy
from cstp_grpc.core.decisions.search import matrix_snapshot
from cstp_grpc.core.decisions.search.ranking import CandidateRows, CollectionStatistics, PassingRows, ReadableRows
from cstp_grpc.core.decisions.search.row_vectors import CodeScanner, Scores, SharedScans, SharedVectorPool
from cstp_grpc.core.decisions.store import ErasedRow, IndexRow, Vector, Vectors

MIN_ROWS_TO_COMPACT = 256
"""Minimum number of rows for a compaction, which happens when more than half are dead. Below it there is little memory
to gain."""

BATCH = 512
"""Rows applied while the lock is held. Chosen: readers that need the lock wait for at most one batch."""

MAX_CACHED_FILTERS = 16
"""Cached pairs of caller and filter for each snapshot; most searches of an agent have the same filters."""

MAX_CACHED_ROWS = 1_000_000
"""Maximum number of cached rows of all filters together: 8 MB. Chosen: several filters in a journal of 100 000."""

UNRESTRICTED = DecisionFilter()


@dataclass(frozen=True, slots=True)
class SnapshotRowCache:
    """A cache, valid for one snapshot only, of the rows that passed filters for callers."""

    snapshot: matrix_snapshot.MatrixSnapshot
    # Written by any thread without a lock: setting an item is atomic, and two threads that miss at the same time store
    # equal rows. A few entries more than MAX_CACHED_FILTERS do no harm.
    rows: dict[tuple[str, DecisionFilter], PassingRows] = field(default_factory=dict)
    readable: dict[str, ReadableRows] = field(default_factory=dict)
    """All rows that a caller may read."""

    def keep(self, caller: str, filters: DecisionFilter, passing: PassingRows) -> None:
        kept = list(self.rows.values())
        if len(kept) < MAX_CACHED_FILTERS and sum(map(len, kept)) + len(passing) <= MAX_CACHED_ROWS:
            self.rows[caller, filters] = passing


class VectorMatrix:
    """The vectors and filterable columns of all decisions. Safe for many threads."""

    def __init__(
        self, dimensions: int, sharing: ReadPolicy, pool: SharedVectorPool | None = None, expected: int = 0
    ) -> None:
        """Create a matrix for vectors of `dimensions`; with `pool`, they are shared with other processes.

        It has room for `expected` passages, and grows beyond.
        """
        self.on_forget: Callable[[], object] = lambda: None
        """Called after decisions were removed."""
        self._sharing = sharing
        # Held by the builder of the next snapshot, and by readers that need `_position_of` together with a snapshot.
        # All other readers take `_snapshot` or `_recent` once, which is atomic, and never wait.
        self._lock = threading.Lock()
        self._scans = SharedScans(CodeScanner())
        self._interner = matrix_snapshot.StringInterner()
        self._position_of: dict[str, int] = {}
        """The row of each decision; read and written under the lock only, because builders change it in place."""
        self._erased: dict[str, int] = {}
        """The revision of each deletion, so that an older change that arrives late is ignored; under the lock too."""
        capacity = max(matrix_snapshot.INITIAL_CAPACITY, expected)
        self._snapshot = matrix_snapshot.MatrixSnapshot.empty(capacity, dimensions, pool)
        self._recent = SnapshotRowCache(self._snapshot)
        self.version = 0
        """Number of changes of the matrix; a search that reads it first finds at least the rows of that version. An
        attribute and not a property, since each search reads it; only `_publish` sets it."""

    @property
    def size(self) -> int:
        snapshot = self._snapshot
        return snapshot.size - snapshot.dead

    def apply(self, rows: Iterable[IndexRow]) -> None:
        """Add or replace rows; a row whose revision is not newer than the present one is ignored."""
        batch: list[IndexRow] = []
        for row in rows:
            batch.append(row)
            if len(batch) == BATCH:
                self._apply(batch)
                batch.clear()
        self._apply(batch)

    def forget(self, erased: Sequence[ErasedRow]) -> None:
        """Remove deleted decisions; one that was restored by a newer revision stays."""
        with self._lock:
            change = matrix_snapshot.SnapshotBuilder(self._snapshot, self._position_of, self._interner, self._erased)
            for row in erased:
                change.erase(row)
            self._publish(change.snapshot())
        self.on_forget()

    def published(self) -> tuple[matrix_snapshot.MatrixSnapshot, matrix_snapshot.StringInterner]:
        """Return the present snapshot and the texts of its numbers."""
        with self._lock:
            return self._snapshot, self._interner

    def adopt(self, snapshot: matrix_snapshot.MatrixSnapshot, interner: matrix_snapshot.StringInterner) -> None:
        """Replace all rows by those of a snapshot without dead rows. No search may run meanwhile."""
        with self._lock:
            self._interner = interner
            self._index_rows(snapshot)
            self._publish(snapshot)

    def candidates(
        self, caller: str, filters: DecisionFilter, statistics: CollectionStatistics | None = None
    ) -> CandidateRows:
        """Return the decisions that the caller may read and that pass the filters.

        With `statistics`, the matrix has only some decisions of the collection that these describe.
        """
        # Read once: rows of one snapshot must not be combined with the columns of another.
        recent = self._recent
        snapshot = recent.snapshot
        passing = recent.rows.get((caller, filters))
        if passing is None:
            mask = self._matching_mask(snapshot, slice(0, snapshot.size), caller, filters)
            if snapshot.dead:
                mask &= snapshot.alive[: snapshot.size]
            passing = PassingRows(snapshot, np.flatnonzero(mask))
            recent.keep(caller, filters, passing)
        return self._candidate_rows(recent, passing, caller, statistics)

    def expect_queries(self, queries: Sequence[Vector]) -> AbstractContextManager[None]:
        """Scan for all of the queries when one of them needs it, until the end of the block."""
        return self._scans.expect(queries)

    def candidates_of(
        self, ids: Iterable[str], caller: str, statistics: CollectionStatistics | None = None
    ) -> CandidateRows:
        """Return those of some decisions that the caller may read; `statistics` are as in `candidates`."""
        with self._lock:
            recent, positions = self._recent, (self._position_of.get(key) for key in ids)
            rows = np.unique(np.array([each for each in positions if each is not None], np.intp))
        rows = rows[self._matching_mask(recent.snapshot, rows, caller, UNRESTRICTED)]
        return self._candidate_rows(recent, PassingRows(recent.snapshot, rows), caller, statistics)

    def sampled_similarities(self, caller: str, query: Vector) -> Scores:
        """Return the similarities of a sample of the decisions that the caller may read."""
        recent = self._recent
        return recent.snapshot.best_of(self._readable_rows(recent, caller).sample, query)

    def first_vectors(self, ids: Sequence[str]) -> Vectors:
        """Return the vector of the first passage of each decision; zeros for one that does not exist any more."""
        with self._lock:
            snapshot, positions = self._snapshot, [self._position_of.get(key, -1) for key in ids]
        rows = np.array(positions, np.intp)
        vectors = snapshot.passages.vectors.take(snapshot.passages.starts[rows])
        vectors[rows < 0] = 0
        return vectors

    def _candidate_rows(
        self, recent: SnapshotRowCache, passing: PassingRows, caller: str, statistics: CollectionStatistics | None
    ) -> CandidateRows:
        reader, readable = self._interner.find(caller), self._readable_rows(recent, caller)
        return CandidateRows(recent.snapshot, passing, reader, readable, self._interner, self._scans, statistics)

    def _readable_rows(self, recent: SnapshotRowCache, caller: str) -> ReadableRows:
        readable = recent.readable.get(caller)
        if readable is None:
            snapshot = recent.snapshot
            mask = self._matching_mask(snapshot, slice(0, snapshot.size), caller, UNRESTRICTED)
            mask &= snapshot.alive[: snapshot.size]
            readable = ReadableRows(mask)
            if len(recent.readable) < MAX_CACHED_FILTERS:
                recent.readable[caller] = readable
        return readable

    def _matching_mask(
        self,
        snapshot: matrix_snapshot.MatrixSnapshot,
        rows: matrix_snapshot.Selector,
        caller: str,
        filters: DecisionFilter,
    ) -> matrix_snapshot.Mask:
        mask = snapshot.columns.matching(rows, caller, filters, self._interner)
        for tag in filters.tags:
            mask &= snapshot.with_any_tag([self._interner.find(tag)])[rows]
        if self._sharing.is_restricted_peer(caller):
            mask &= snapshot.columns.owned_by(rows, caller, self._interner) | self._peer_readable_mask(snapshot, rows)
        return mask

    def _peer_readable_mask(
        self, snapshot: matrix_snapshot.MatrixSnapshot, rows: matrix_snapshot.Selector
    ) -> matrix_snapshot.Mask:
        mask = np.ones(snapshot.size, np.bool_)[rows]
        if self._sharing.categories:
            mask &= np.isin(snapshot.columns.categories[rows], list(map(self._interner.find, self._sharing.categories)))
        if self._sharing.tags:
            mask &= snapshot.with_any_tag(list(map(self._interner.find, self._sharing.tags)))[rows]
        return mask

    def _apply(self, batch: Sequence[IndexRow]) -> None:
        with self._lock:
            change = matrix_snapshot.SnapshotBuilder(self._snapshot, self._position_of, self._interner, self._erased)
            try:
                for row in batch:
                    change.take(row)
            finally:
                # The rows before one that raised are in `_position_of` already, so they must be published too. What
                # the failed row wrote lies beyond `size`, and the next builder overwrites it.
                self._publish(change.snapshot())

    def _index_rows(self, snapshot: matrix_snapshot.MatrixSnapshot) -> None:
        self._position_of = {decision_id: position for position, decision_id in enumerate(snapshot.ids)}

    def _publish(self, snapshot: matrix_snapshot.MatrixSnapshot) -> None:
        if snapshot.size >= MIN_ROWS_TO_COMPACT and snapshot.dead > snapshot.size / 2:
            # A new dict and new arrays: readers of the previous snapshot keep the old ones until they are done.
            snapshot = matrix_snapshot.compact_snapshot(snapshot)
            self._index_rows(snapshot)
        self._snapshot = snapshot
        self._recent = SnapshotRowCache(snapshot)
        # Last: results from the former snapshot must never count as results from this one.
        self.version += 1
