"""A copy of the journal's vectors in memory, for exact search under filters.

Rows are written once and then only read. A change of a decision appends a row and marks the old one as dead, in a
snapshot that replaces the previous one as a whole: a reader sees each decision exactly once, in one state, without
locks.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from cstp_grpc.decisions.model import DecisionFilter
from cstp_grpc.decisions.read_policy import ReadPolicy
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
from cstp_grpc.decisions.store import IndexRow, Vector

INITIAL_CAPACITY = 256
"""Rows that there is room for at first; the room is doubled when it is full."""

MIN_ROWS_TO_COMPACT = 256
"""Rows from which on dead ones are cleared away, once they are more than half."""

BATCH = 512
"""How many rows are applied before waiting threads get their turn."""

DENSE_SHARE = 0.5
"""The share of passing rows from which on scoring all rows is faster than gathering those that pass."""

MAX_CACHED_FILTERS = 16
"""For how many callers and filters the rows of a snapshot are kept; most searches of an agent have the same filters."""

MAX_CACHED_ROWS = 20_000
"""How many rows are kept at the most: where there are more, scoring them takes much longer than finding them."""

SCORE_TOLERANCE = 1e-5
"""How far a score may be from its exact value in the first pass, in which float32 rounds."""

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
    """Identifiers, those of the next snapshots behind them."""
    size: int
    entries: int
    dead: int
    alive: Mask
    """For each row that there is room for, whether it still stands for its decision."""


class CandidateRows:
    """Rows that pass a filter, ready to be scored."""

    def __init__(self, snapshot: MatrixSnapshot, rows: Rows, scorer: ParallelDotProduct) -> None:
        self._snapshot = snapshot
        self._rows = rows
        self._scorer = scorer

    def __len__(self) -> int:
        return len(self._rows)

    def best(self, query: Vector, limit: int, min_score: float) -> list[ScoredDecision]:
        """Return the top rows by falling score, then date, then id; at most `limit`, none below `min_score`."""
        rows, scores = self._rows, self._first_pass(query)
        near = scores >= min_score - SCORE_TOLERANCE
        if not near.all():
            rows, scores = rows[near], scores[near]
        if len(rows) > limit:
            least = np.partition(scores, -limit)[-limit]
            rows = rows[scores >= least - 2 * SCORE_TOLERANCE]
        ordered = sorted(self._exact_sort_keys(query, rows))[:limit]
        return [ScoredDecision(key, -score, -date) for score, date, key in ordered if -score >= min_score]

    def _first_pass(self, query: Vector) -> NDArray[np.float32]:
        vectors, size = self._snapshot.columns.vectors, self._snapshot.size
        if len(self._rows) < DENSE_SHARE * size:
            return vectors.products_of(self._rows, query)
        scores = vectors.products(size, query, self._scorer)
        return scores if len(self._rows) == size else scores[self._rows]

    def _exact_sort_keys(self, query: Vector, rows: Rows) -> list[tuple[float, float, str]]:
        """Return the sort keys of the rows: negative exact score, negative date, and id."""
        columns, ids = self._snapshot.columns, self._snapshot.ids
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
    rows: dict[tuple[str, DecisionFilter], Rows] = field(default_factory=dict)


class VectorMatrix:
    """The vectors and filterable columns of all decisions. Safe for many threads."""

    def __init__(self, dimensions: int, sharing: ReadPolicy, pool: SharedVectorPool | None = None) -> None:
        """Create a matrix for vectors of `dimensions`; with `pool`, they are shared with other processes."""
        self._sharing = sharing
        self._lock = threading.Lock()
        self._scorer = ParallelDotProduct()
        self._codes = StringInterner()
        self._places: dict[str, int] = {}
        """The row of each decision; read and written under the lock, as all that follows from it."""
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

    def candidates(self, caller: str, filters: DecisionFilter) -> CandidateRows:
        """Return the decisions that the caller may read and that pass the filters."""
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
        return CandidateRows(snapshot, rows, self._scorer)

    def candidates_among(
        self, ids: Iterable[str], after_revision: int, caller: str, filters: DecisionFilter
    ) -> CandidateRows:
        """Return the `candidates` whose id is in `ids` or that changed after a revision."""
        with self._lock:
            snapshot = self._snapshot
            places = [place for place in map(self._places.get, ids) if place is not None]
        newer = snapshot.columns.revisions[: snapshot.size] > after_revision
        if snapshot.dead:
            newer &= snapshot.alive[: snapshot.size]
        rows = np.union1d(np.array(places, np.intp), np.flatnonzero(newer))
        return CandidateRows(snapshot, rows[self._matching_mask(snapshot, rows, caller, filters)], self._scorer)

    def similarity(self, decision_id: str, query: Vector) -> float | None:
        """Return the cosine similarity of a decision to a query; None if the decision does not exist."""
        with self._lock:
            snapshot, place = self._snapshot, self._places.get(decision_id)
        return None if place is None else float(snapshot.columns.vectors.take(np.array([place]))[0] @ query)

    def sample(self, count: int) -> list[Vector]:
        """Return the vectors of at most `count` decisions, evenly spread over all rows."""
        snapshot = self._snapshot
        live = np.flatnonzero(snapshot.alive[: snapshot.size])
        chosen = live[np.linspace(0, len(live) - 1, min(count, len(live)), dtype=np.intp)]
        return list(snapshot.columns.vectors.take(chosen))

    def _matching_mask(self, snapshot: MatrixSnapshot, rows: Selector, caller: str, filters: DecisionFilter) -> Mask:
        mask = snapshot.columns.matching(rows, caller, filters, self._codes)
        for tag in filters.tags:
            mask &= snapshot.tags.with_tag(self._codes.find(tag), snapshot.entries, snapshot.size)[rows]
        if self._sharing.is_restricted_peer(caller):
            mask &= snapshot.columns.owned_by(rows, caller, self._codes) | self._peer_readable_mask(snapshot, rows)
        return mask

    def _peer_readable_mask(self, snapshot: MatrixSnapshot, rows: Selector) -> Mask:
        """Return a mask of the rows that peers may read if they are shared."""
        mask = np.ones(snapshot.size, np.bool_)[rows]
        if self._sharing.categories:
            mask &= snapshot.columns.of_any_category(rows, self._sharing.categories, self._codes)
        if self._sharing.tags:
            tags = [self._codes.find(tag) for tag in self._sharing.tags]
            mask &= snapshot.tags.with_any_tag(tags, snapshot.entries, snapshot.size)[rows]
        return mask

    def _apply(self, batch: Sequence[IndexRow]) -> None:
        with self._lock:
            change = SnapshotBuilder(self._snapshot, self._places, self._codes)
            try:
                for row in batch:
                    change.take(row)
            finally:
                # A row that is refused must not take those before it along.
                self._publish(change.snapshot())

    def _publish(self, snapshot: MatrixSnapshot) -> None:
        if snapshot.size >= MIN_ROWS_TO_COMPACT and snapshot.dead > snapshot.size / 2:
            snapshot = compact_snapshot(snapshot)
            self._places = {decision_id: place for place, decision_id in enumerate(snapshot.ids)}
        self._snapshot = snapshot
        self._recent = SnapshotRowCache(snapshot)


class SnapshotBuilder:
    """Builds the next snapshot in rows beyond those that readers of the present one use."""

    def __init__(self, base: MatrixSnapshot, places: dict[str, int], codes: StringInterner) -> None:
        self._base = base
        self._columns = base.columns
        self._tags = base.tags
        self._ids = base.ids
        self._places = places
        self._codes = codes
        self._size = base.size
        self._entries = base.entries
        self._killed: list[int] = []

    def take(self, row: IndexRow) -> None:
        """Append a row and mark the one it replaces as dead; a row of an old revision is ignored."""
        known = self._places.get(row.decision_id)
        if known is not None and row.revision <= self._columns.revisions[known]:
            return
        if self._size == self._columns.capacity:
            self._columns = self._columns.copy(slice(0, self._size), 2 * self._size)
        self._columns.write(self._size, row, self._codes)
        self._append_tags(row)
        self._ids.append(row.decision_id)
        self._places[row.decision_id] = self._size
        self._size += 1
        if known is not None:
            self._killed.append(known)

    def snapshot(self) -> MatrixSnapshot:
        """Return the snapshot with all appended rows."""
        alive = self._base.alive
        if len(alive) < self._columns.capacity:
            alive = np.concatenate([alive, np.ones(self._columns.capacity - len(alive), np.bool_)])
        elif self._killed:
            # Readers of the snapshot before must go on seeing the old rows, for they do not see the new ones.
            alive = alive.copy()
        alive[self._killed] = False
        dead = self._base.dead + len(self._killed)
        return MatrixSnapshot(self._columns, self._tags, self._ids, self._size, self._entries, dead, alive)

    def _append_tags(self, row: IndexRow) -> None:
        tags = sorted({self._codes.intern(tag) for tag in row.tags})
        end = self._entries + len(tags)
        if end > self._tags.capacity:
            self._tags = self._tags.copy(slice(0, self._entries), max(end, 2 * self._tags.capacity))
        self._tags.rows[self._entries : end] = self._size
        self._tags.tags[self._entries : end] = tags
        self._entries = end


def allocate_vectors(capacity: int, dimensions: int, pool: SharedVectorPool | None) -> RowVectors:
    """Return vectors without rows, with room for `capacity` rows."""
    if pool is None:
        return LocalVectors(np.zeros((capacity, dimensions), np.float32))
    return SharedVectors(pool, np.zeros(capacity, np.int32))


def compact_snapshot(snapshot: MatrixSnapshot) -> MatrixSnapshot:
    """Return a snapshot without the dead rows, in new arrays; readers of the old one are not affected."""
    alive = snapshot.alive[: snapshot.size]
    kept = np.flatnonzero(alive)
    capacity = max(INITIAL_CAPACITY, 2 * len(kept))
    entry_rows = snapshot.tags.rows[: snapshot.entries]
    kept_entries = np.flatnonzero(alive[entry_rows])
    tags = snapshot.tags.copy(kept_entries, max(INITIAL_CAPACITY, 2 * len(kept_entries)))
    new_places = np.cumsum(alive, dtype=np.int32) - 1
    tags.rows[: len(kept_entries)] = new_places[tags.rows[: len(kept_entries)]]
    ids = [snapshot.ids[place] for place in kept.tolist()]
    return MatrixSnapshot(
        snapshot.columns.copy(kept, capacity), tags, ids, len(kept), len(kept_entries), 0, np.ones(capacity, np.bool_)
    )
