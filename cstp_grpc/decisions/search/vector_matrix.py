"""A copy of the journal's vectors in memory, for exact search under filters.

Rows are written once and then only read. A change of a decision appends a row and marks the old one as dead, in a
snapshot that replaces the previous one as a whole: a reader sees each decision exactly once, in one state, without
locks.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from cstp_grpc.decisions.model import DecisionFilter
from cstp_grpc.decisions.read_policy import ReadPolicy
from cstp_grpc.decisions.search.int8_codes import select_best
from cstp_grpc.decisions.search.matrix_columns import Mask, MatrixColumns, Selector, StringInterner, TagColumns
from cstp_grpc.decisions.search.row_vectors import (
    LocalVectors,
    ParallelDotProduct,
    Rows,
    RowVectors,
    SharedVectorPool,
    SharedVectors,
    dot_products,
)
from cstp_grpc.decisions.search.shared_scans import SharedScans
from cstp_grpc.decisions.store import ErasedRow, IndexRow, Vector

INITIAL_CAPACITY = 256
"""Initial number of rows with memory. Chosen: small, since growth doubles it and so copies each row twice at most."""

MIN_ROWS_TO_COMPACT = 256
"""Minimum number of rows for a compaction, which happens when more than half are dead. Below it there is little memory
to gain."""

BATCH = 512
"""Rows applied while the lock is held. Chosen: readers that need the lock wait for one batch at the most."""

DENSE_SHARE = 0.5
"""The share of passing rows from which scoring all rows in memory order is faster than gathering those that pass."""

MIN_ROWS_TO_ESTIMATE = 3000
"""Rows from which estimating their scores first is faster than computing them (measured)."""

ESTIMATED_SHARE = 0.1
"""The share of passing rows from which estimating all rows is faster than gathering those that pass (measured)."""

MAX_CACHED_FILTERS = 16
"""Cached pairs of caller and filter for each snapshot; most searches of an agent have the same filters."""

MAX_CACHED_ROWS = 20_000
"""Maximum number of rows in a cache entry: above it, scoring takes much longer than filtering, which a hit saves."""

SCORE_TOLERANCE = 1e-5
"""Maximum error of a score in the first pass: a float32 sum of the products of unit vectors is off by about 1e-6."""

SCORE_DECIMALS = 6
"""Decimals of a score; float32 vectors do not carry more, and rounding makes a score the same on every path."""


@dataclass(frozen=True, slots=True)
class ScoredDecision:
    """A decision id with its cosine similarity, from -1 to 1; `date` is in seconds since the epoch."""

    decision_id: str
    score: float
    date: float


@dataclass(frozen=True, slots=True)
class MatrixSnapshot:
    """The rows at one moment: the first `size`, without those that are dead by then."""

    columns: MatrixColumns
    tags: TagColumns
    ids: list[str]
    """Decision ids by row. Later snapshots append to the same list, so only the first `size` belong to this one."""
    size: int
    entries: int
    dead: int
    alive: Mask
    """Whether a row is the current one of its decision; as long as the capacity, with true for rows not yet written."""


class CandidateRows:
    """Rows that pass a filter, ready to be scored."""

    def __init__(self, snapshot: MatrixSnapshot, rows: Rows, scorer: ParallelDotProduct, scans: SharedScans) -> None:
        self._snapshot = snapshot
        self._rows = rows
        self._scorer = scorer
        self._scans = scans

    def __len__(self) -> int:
        return len(self._rows)

    def best(self, query: Vector, limit: int, min_score: float) -> list[ScoredDecision]:
        """Return the top rows by falling score, then date, then id; at most `limit`, none below `min_score`."""
        rows, scores = self._first_pass(query, limit, min_score)
        near = scores >= min_score - SCORE_TOLERANCE
        if not near.all():
            rows, scores = rows[near], scores[near]
        if len(rows) > limit:
            least = np.partition(scores, -limit)[-limit]
            # Twice the tolerance: the row that is really the last may score too low, and `least` too high.
            rows = rows[scores >= least - 2 * SCORE_TOLERANCE]
        ordered = sorted(self._exact_sort_keys(query, rows))[:limit]
        return [ScoredDecision(key, -score, -date) for score, date, key in ordered if -score >= min_score]

    def _first_pass(self, query: Vector, limit: int, min_score: float) -> tuple[Rows, NDArray[np.float32]]:
        """Return rows, among them all that `best` returns, and their scores within SCORE_TOLERANCE."""
        vectors, size, rows = self._snapshot.columns.vectors, self._snapshot.size, self._rows
        if len(rows) >= max(MIN_ROWS_TO_ESTIMATE, ESTIMATED_SHARE * size):
            rows = self._promising_rows(query, limit, min_score)
        if len(rows) < DENSE_SHARE * size:
            return rows, vectors.products_of(rows, query)
        scores = vectors.products(size, query, self._scorer)
        return rows, scores if len(rows) == size else scores[rows]

    def _promising_rows(self, query: Vector, limit: int, min_score: float) -> Rows:
        """Return the rows whose estimated score is good enough for the true one to be among the best."""
        size = self._snapshot.size
        estimates, error = self._scans.estimates(self._snapshot.columns.vectors, size, query)
        # The score that counts is rounded, too.
        error += SCORE_TOLERANCE
        if len(self._rows) == size:
            return select_best(estimates, limit, min_score, error)
        return self._rows[select_best(estimates[self._rows], limit, min_score, error)]

    def _exact_sort_keys(self, query: Vector, rows: Rows) -> list[tuple[float, float, str]]:
        """Return the sort keys of the rows: negative exact score, negative date, and id."""
        columns, ids = self._snapshot.columns, self._snapshot.ids
        # In float64 and row by row, so that a score does not depend on which path or batch computed it.
        exact = dot_products(columns.vectors.take(rows).astype(np.float64), query.astype(np.float64)).round(
            SCORE_DECIMALS
        )
        # In the place of np.clip, which takes as long as the products.
        scores = np.minimum(np.maximum(exact, -1.0), 1.0)
        keys = [ids[row] for row in rows.tolist()]
        return list(zip((-scores).tolist(), (-columns.dates[rows]).tolist(), keys, strict=True))


@dataclass(frozen=True, slots=True)
class SnapshotRowCache:
    """A cache, valid for one snapshot only, of the rows that passed filters for callers."""

    snapshot: MatrixSnapshot
    # Written by any thread without a lock: setting an item is atomic, and two threads that miss at the same time store
    # equal rows. A few entries more than MAX_CACHED_FILTERS do no harm.
    rows: dict[tuple[str, DecisionFilter], Rows] = field(default_factory=dict)


class VectorMatrix:
    """The vectors and filterable columns of all decisions. Safe for many threads."""

    def __init__(self, dimensions: int, sharing: ReadPolicy, pool: SharedVectorPool | None = None) -> None:
        """Create a matrix for vectors of `dimensions`; with `pool`, they are shared with other processes."""
        self._sharing = sharing
        # Held by whoever builds the next snapshot, and by readers that need `_position_of` together with a snapshot.
        # All other readers take `_snapshot` or `_recent` once, which is atomic, and never wait.
        self._lock = threading.Lock()
        self._scorer = ParallelDotProduct()
        self._scans = SharedScans(self._scorer)
        self._interner = StringInterner()
        self._position_of: dict[str, int] = {}
        """The row of each decision; read and written under the lock only, because builders change it in place."""
        self._erased: dict[str, int] = {}
        """The revision of each deletion, so that an older change that arrives late is ignored; under the lock too."""
        self._snapshot = MatrixSnapshot(
            MatrixColumns.empty(INITIAL_CAPACITY, allocate_vectors(INITIAL_CAPACITY, dimensions, pool)),
            TagColumns.empty(INITIAL_CAPACITY),
            ids=[],
            size=0,
            entries=0,
            dead=0,
            alive=np.ones(INITIAL_CAPACITY, np.bool_),
        )
        self._recent = SnapshotRowCache(self._snapshot)

    @property
    def size(self) -> int:
        """The number of decisions."""
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
            change = SnapshotBuilder(self._snapshot, self._position_of, self._interner, self._erased)
            for row in erased:
                change.erase(row)
            self._publish(change.snapshot())

    def candidates(self, caller: str, filters: DecisionFilter) -> CandidateRows:
        """Return the decisions that the caller may read and that pass the filters."""
        # Read once: rows of one snapshot must not be combined with the columns of another.
        recent = self._recent
        snapshot = recent.snapshot
        rows = recent.rows.get((caller, filters))
        if rows is None:
            mask = self._matching_mask(snapshot, slice(0, snapshot.size), caller, filters)
            if snapshot.dead:
                mask &= snapshot.alive[: snapshot.size]
            rows = np.flatnonzero(mask)
            if len(recent.rows) < MAX_CACHED_FILTERS and len(rows) <= MAX_CACHED_ROWS:
                recent.rows[caller, filters] = rows
        return CandidateRows(snapshot, rows, self._scorer, self._scans)

    def expect_queries(self, queries: Sequence[Vector]) -> AbstractContextManager[None]:
        """Scan for all of the queries when one of them needs it, until the end of the block."""
        return self._scans.expect(queries)

    def candidates_among(
        self, ids: Iterable[str], after_revision: int, caller: str, filters: DecisionFilter
    ) -> CandidateRows:
        """Return the `candidates` whose id is in `ids` or that changed after a revision."""
        with self._lock:
            snapshot = self._snapshot
            positions = [position for position in map(self._position_of.get, ids) if position is not None]
        newer = snapshot.columns.revisions[: snapshot.size] > after_revision
        if snapshot.dead:
            newer &= snapshot.alive[: snapshot.size]
        rows = np.union1d(np.array(positions, np.intp), np.flatnonzero(newer))
        passing = rows[self._matching_mask(snapshot, rows, caller, filters)]
        return CandidateRows(snapshot, passing, self._scorer, self._scans)

    def similarity(self, decision_id: str, query: Vector) -> float | None:
        """Return the cosine similarity of a decision to a query; None if the decision does not exist."""
        with self._lock:
            snapshot, position = self._snapshot, self._position_of.get(decision_id)
        return None if position is None else float(snapshot.columns.vectors.take(np.array([position]))[0] @ query)

    def sample(self, count: int) -> list[Vector]:
        """Return the vectors of at most `count` decisions, evenly spread over all rows."""
        snapshot = self._snapshot
        live = np.flatnonzero(snapshot.alive[: snapshot.size])
        chosen = live[np.linspace(0, len(live) - 1, min(count, len(live)), dtype=np.intp)]
        return list(snapshot.columns.vectors.take(chosen))

    def _matching_mask(self, snapshot: MatrixSnapshot, rows: Selector, caller: str, filters: DecisionFilter) -> Mask:
        mask = snapshot.columns.matching(rows, caller, filters, self._interner)
        for tag in filters.tags:
            mask &= snapshot.tags.with_tag(self._interner.find(tag), snapshot.entries, snapshot.size)[rows]
        if self._sharing.is_restricted_peer(caller):
            mask &= snapshot.columns.owned_by(rows, caller, self._interner) | self._peer_readable_mask(snapshot, rows)
        return mask

    def _peer_readable_mask(self, snapshot: MatrixSnapshot, rows: Selector) -> Mask:
        """Return a mask of the rows that peers may read if they are shared."""
        mask = np.ones(snapshot.size, np.bool_)[rows]
        if self._sharing.categories:
            mask &= snapshot.columns.of_any_category(rows, self._sharing.categories, self._interner)
        if self._sharing.tags:
            tags = [self._interner.find(tag) for tag in self._sharing.tags]
            mask &= snapshot.tags.with_any_tag(tags, snapshot.entries, snapshot.size)[rows]
        return mask

    def _apply(self, batch: Sequence[IndexRow]) -> None:
        with self._lock:
            change = SnapshotBuilder(self._snapshot, self._position_of, self._interner, self._erased)
            try:
                for row in batch:
                    change.take(row)
            finally:
                # The rows before one that raised are in `_position_of` already, so they must be published too. What
                # the failed row wrote lies beyond `size`, and the next builder overwrites it.
                self._publish(change.snapshot())

    def _publish(self, snapshot: MatrixSnapshot) -> None:
        if snapshot.size >= MIN_ROWS_TO_COMPACT and snapshot.dead > snapshot.size / 2:
            snapshot = compact_snapshot(snapshot)
            # A new dict and new arrays: readers of the previous snapshot keep the old ones until they are done.
            self._position_of = {decision_id: position for position, decision_id in enumerate(snapshot.ids)}
        self._snapshot = snapshot
        self._recent = SnapshotRowCache(snapshot)


class SnapshotBuilder:
    """Builds the next snapshot in rows beyond those that readers of the present one use; one builder at a time."""

    def __init__(
        self, base: MatrixSnapshot, position_of: dict[str, int], interner: StringInterner, erased: dict[str, int]
    ) -> None:
        self._base = base
        self._erased = erased
        self._columns = base.columns
        self._tags = base.tags
        self._ids = base.ids
        self._position_of = position_of
        self._interner = interner
        self._size = base.size
        self._entries = base.entries
        self._replaced: list[int] = []

    def take(self, row: IndexRow) -> None:
        """Append a row and mark the one it replaces as dead; a row of an old revision is ignored."""
        known = self._position_of.get(row.decision_id)
        if known is not None and row.revision <= self._columns.revisions[known]:
            return
        if row.revision <= self._erased.get(row.decision_id, -1):
            return
        if self._size == self._columns.capacity:
            self._columns = self._columns.copy(slice(0, self._size), 2 * self._size)
        # Into arrays that readers share, at a row that no published `size` includes.
        self._columns.write(self._size, row, self._interner)
        self._append_tags(row)
        self._ids.append(row.decision_id)
        self._position_of[row.decision_id] = self._size
        self._size += 1
        if known is not None:
            self._replaced.append(known)

    def erase(self, row: ErasedRow) -> None:
        """Mark the row of a deleted decision as dead; a deletion older than the row is ignored."""
        known = self._position_of.get(row.decision_id)
        if known is not None and row.revision <= self._columns.revisions[known]:
            return
        self._erased[row.decision_id] = max(row.revision, self._erased.get(row.decision_id, -1))
        if known is not None:
            del self._position_of[row.decision_id]
            self._replaced.append(known)

    def snapshot(self) -> MatrixSnapshot:
        """Return the snapshot with all appended rows."""
        alive = self._base.alive
        if len(alive) < self._columns.capacity:
            # The rows just grew, and the concatenation is a copy already.
            alive = np.concatenate([alive, np.ones(self._columns.capacity - len(alive), np.bool_)])
        elif self._replaced:
            # Readers of the snapshot before must go on seeing the old rows, for they do not see the new ones.
            alive = alive.copy()
        alive[self._replaced] = False
        dead = self._base.dead + len(self._replaced)
        return MatrixSnapshot(self._columns, self._tags, self._ids, self._size, self._entries, dead, alive)

    def _append_tags(self, row: IndexRow) -> None:
        tags = sorted({self._interner.intern(tag) for tag in row.tags})
        end = self._entries + len(tags)
        if end > self._tags.capacity:
            self._tags = self._tags.copy(slice(0, self._entries), max(end, 2 * self._tags.capacity))
        self._tags.rows[self._entries : end] = self._size
        self._tags.tags[self._entries : end] = tags
        self._entries = end


def allocate_vectors(capacity: int, dimensions: int, pool: SharedVectorPool | None) -> RowVectors:
    """Return vectors without rows, with room for `capacity` rows."""
    if pool is None:
        return LocalVectors.empty(capacity, dimensions)
    return SharedVectors(pool, np.zeros(capacity, np.int32))


def compact_snapshot(snapshot: MatrixSnapshot) -> MatrixSnapshot:
    """Return a snapshot without the dead rows, in new arrays; readers of the old one are not affected."""
    alive = snapshot.alive[: snapshot.size]
    kept = np.flatnonzero(alive)
    capacity = max(INITIAL_CAPACITY, 2 * len(kept))
    entry_rows = snapshot.tags.rows[: snapshot.entries]
    kept_entries = np.flatnonzero(alive[entry_rows])
    tags = snapshot.tags.copy(kept_entries, max(INITIAL_CAPACITY, 2 * len(kept_entries)))
    # The new row of a kept one is the number of kept rows before it.
    new_positions = np.cumsum(alive, dtype=np.int32) - 1
    tags.rows[: len(kept_entries)] = new_positions[tags.rows[: len(kept_entries)]]
    ids = [snapshot.ids[position] for position in kept.tolist()]
    return MatrixSnapshot(
        snapshot.columns.copy(kept, capacity), tags, ids, len(kept), len(kept_entries), 0, np.ones(capacity, np.bool_)
    )
