"""A mirror of the journal's vectors in memory, for exact search under filters.

Rows are written once and then only read. A change of a decision appends a row and marks the old one as dead, in a
snapshot that replaces the one before as a whole: a reader sees each decision exactly once, in one state, and waits for
nobody.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from cstp_grpc.decisions.columns import Codes, Columns, Mask, Selector, TagColumns
from cstp_grpc.decisions.model import DecisionFilter
from cstp_grpc.decisions.scoring import Scorer, products
from cstp_grpc.decisions.sharing import Sharing
from cstp_grpc.decisions.store import IndexRow, Vector
from cstp_grpc.decisions.vectors import OwnVectors, PooledVectors, Rows, RowVectors, VectorPool

FIRST_CAPACITY = 256
"""Rows that there is room for at first; the room is doubled when it is full."""

COMPACT_FROM = 256
"""Rows from which on dead ones are cleared away, once they are more than half."""

BATCH = 512
"""How many rows are applied before waiting threads get their turn."""

DENSE_SHARE = 0.5
"""The share of passing rows from which on scoring all rows is faster than gathering those that pass."""

RECENT = 16
"""For how many callers and filters the rows of a snapshot are kept; most searches of an agent have the same filters."""

RECENT_ROWS = 20_000
"""How many rows are kept at the most: where there are more, scoring them takes much longer than finding them."""

MARGIN = 1e-5
"""How far a score may be from its exact value in the first pass, in which float32 rounds."""

DECIMALS = 6
"""Decimals of a score; float32 vectors do not carry more, and rounding makes a score the same on every path."""


@dataclass(frozen=True, slots=True)
class Scored:
    """A decision and its cosine similarity to a query, from -1 to 1; `date` is in seconds since the epoch."""

    decision_id: str
    score: float
    date: float


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The rows of one moment: the first `size`, without those that are dead by then."""

    columns: Columns
    tags: TagColumns
    ids: list[str]
    """Identifiers, those of the next snapshots behind them."""
    size: int
    entries: int
    dead: int
    alive: Mask
    """For each row that there is room for, whether it still stands for its decision."""


class Candidates:
    """Rows that pass a filter, ready to be scored."""

    def __init__(self, snapshot: Snapshot, rows: Rows, scorer: Scorer) -> None:
        self._snapshot = snapshot
        self._rows = rows
        self._scorer = scorer

    def __len__(self) -> int:
        return len(self._rows)

    def best(self, query: Vector, limit: int, min_score: float) -> list[Scored]:
        """Return the best by falling score, then date, then id; at most `limit`, none below `min_score`."""
        rows, scores = self._rows, self._first_pass(query)
        near = scores >= min_score - MARGIN
        if not near.all():
            rows, scores = rows[near], scores[near]
        if len(rows) > limit:
            least = np.partition(scores, -limit)[-limit]
            rows = rows[scores >= least - 2 * MARGIN]
        ordered = sorted(self._exactly(query, rows))[:limit]
        return [Scored(key, -score, -date) for score, date, key in ordered if -score >= min_score]

    def _first_pass(self, query: Vector) -> NDArray[np.float32]:
        vectors, size = self._snapshot.columns.vectors, self._snapshot.size
        if len(self._rows) < DENSE_SHARE * size:
            return vectors.products_of(self._rows, query)
        scores = vectors.products(size, query, self._scorer)
        return scores if len(self._rows) == size else scores[self._rows]

    def _exactly(self, query: Vector, rows: Rows) -> list[tuple[float, float, str]]:
        """Return what the rows are ordered by: the negative of their exact score, that of their date, and their id."""
        columns, ids = self._snapshot.columns, self._snapshot.ids
        exact = products(columns.vectors.take(rows).astype(np.float64), query.astype(np.float64)).round(DECIMALS)
        # In the place of np.clip, which takes as long as the products.
        scores = np.minimum(np.maximum(exact, -1.0), 1.0)
        keys = [ids[row] for row in rows.tolist()]
        return list(zip((-scores).tolist(), (-columns.dates[rows]).tolist(), keys, strict=True))


@dataclass(frozen=True, slots=True)
class RecentRows:
    """The rows of one snapshot that passed filters for callers; they are as good as long as the snapshot is."""

    snapshot: Snapshot
    rows: dict[tuple[str, DecisionFilter], Rows] = field(default_factory=dict)


class VectorMatrix:
    """The vectors of all decisions and what filters look at. Safe for many threads."""

    def __init__(self, dimensions: int, sharing: Sharing, pool: VectorPool | None = None) -> None:
        """Prepare for vectors of so many dimensions, which are kept in `pool` if other processes use them too."""
        self._sharing = sharing
        self._lock = threading.Lock()
        self._scorer = Scorer()
        self._codes = Codes()
        self._places: dict[str, int] = {}
        """The row of each decision; read and written under the lock, as all that follows from it."""
        self._snapshot = Snapshot(
            Columns.empty(FIRST_CAPACITY, empty_vectors(FIRST_CAPACITY, dimensions, pool)),
            TagColumns.empty(FIRST_CAPACITY),
            ids=[],
            size=0,
            entries=0,
            dead=0,
            alive=np.ones(FIRST_CAPACITY, np.bool_),
        )
        self._recent = RecentRows(self._snapshot)

    @property
    def size(self) -> int:
        """How many decisions there are."""
        snapshot = self._snapshot
        return snapshot.size - snapshot.dead

    def apply(self, rows: Iterable[IndexRow]) -> None:
        """Take over rows; one whose revision is not newer than what is there changes nothing."""
        batch: list[IndexRow] = []
        for row in rows:
            batch.append(row)
            if len(batch) == BATCH:
                self._apply(batch)
                batch.clear()
        self._apply(batch)

    def candidates(self, caller: str, filters: DecisionFilter) -> Candidates:
        """Return the decisions that the caller may read and that pass the filters."""
        recent = self._recent
        snapshot = recent.snapshot
        rows = recent.rows.get((caller, filters))
        if rows is None:
            mask = self._passing(snapshot, slice(0, snapshot.size), caller, filters)
            if snapshot.dead:
                mask &= snapshot.alive[: snapshot.size]
            rows = np.flatnonzero(mask)
            if len(recent.rows) < RECENT and len(rows) <= RECENT_ROWS:
                recent.rows[caller, filters] = rows
        return Candidates(snapshot, rows, self._scorer)

    def among(self, ids: Iterable[str], after_revision: int, caller: str, filters: DecisionFilter) -> Candidates:
        """Return those of `candidates` that are among `ids` or changed after a revision."""
        with self._lock:
            snapshot = self._snapshot
            places = [place for place in map(self._places.get, ids) if place is not None]
        newer = snapshot.columns.revisions[: snapshot.size] > after_revision
        if snapshot.dead:
            newer &= snapshot.alive[: snapshot.size]
        rows = np.union1d(np.array(places, np.intp), np.flatnonzero(newer))
        return Candidates(snapshot, rows[self._passing(snapshot, rows, caller, filters)], self._scorer)

    def similarity(self, decision_id: str, query: Vector) -> float | None:
        """Return the cosine similarity of a decision to a query; None where there is no such decision."""
        with self._lock:
            snapshot, place = self._snapshot, self._places.get(decision_id)
        return None if place is None else float(snapshot.columns.vectors.take(np.array([place]))[0] @ query)

    def sample(self, count: int) -> list[Vector]:
        """Return the vectors of at most `count` decisions, evenly spread over all."""
        snapshot = self._snapshot
        live = np.flatnonzero(snapshot.alive[: snapshot.size])
        chosen = live[np.linspace(0, len(live) - 1, min(count, len(live)), dtype=np.intp)]
        return list(snapshot.columns.vectors.take(chosen))

    def _passing(self, snapshot: Snapshot, rows: Selector, caller: str, filters: DecisionFilter) -> Mask:
        mask = snapshot.columns.passing(rows, caller, filters, self._codes)
        for tag in filters.tags:
            mask &= snapshot.tags.having(self._codes.find(tag), snapshot.entries, snapshot.size)[rows]
        if self._sharing.narrows(caller):
            mask &= snapshot.columns.own(rows, caller, self._codes) | self._covered(snapshot, rows)
        return mask

    def _covered(self, snapshot: Snapshot, rows: Selector) -> Mask:
        """Return which rows peers may read if they are shared."""
        mask = np.ones(snapshot.size, np.bool_)[rows]
        if self._sharing.categories:
            mask &= snapshot.columns.of_any_category(rows, self._sharing.categories, self._codes)
        if self._sharing.tags:
            tags = [self._codes.find(tag) for tag in self._sharing.tags]
            mask &= snapshot.tags.having_any(tags, snapshot.entries, snapshot.size)[rows]
        return mask

    def _apply(self, batch: Sequence[IndexRow]) -> None:
        with self._lock:
            change = Change(self._snapshot, self._places, self._codes)
            try:
                for row in batch:
                    change.take(row)
            finally:
                # A row that is refused must not take those before it along.
                self._publish(change.snapshot())

    def _publish(self, snapshot: Snapshot) -> None:
        if snapshot.size >= COMPACT_FROM and snapshot.dead > snapshot.size / 2:
            snapshot = compacted(snapshot)
            self._places = {decision_id: place for place, decision_id in enumerate(snapshot.ids)}
        self._snapshot = snapshot
        self._recent = RecentRows(snapshot)


class Change:
    """The next snapshot in the making, beyond the rows that readers of the present one look at."""

    def __init__(self, base: Snapshot, places: dict[str, int], codes: Codes) -> None:
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
        """Append a row and remember to mark the one that it replaces; an old revision changes nothing."""
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

    def snapshot(self) -> Snapshot:
        """Return the snapshot with all rows that were taken."""
        alive = self._base.alive
        if len(alive) < self._columns.capacity:
            alive = np.concatenate([alive, np.ones(self._columns.capacity - len(alive), np.bool_)])
        elif self._killed:
            # Readers of the snapshot before must go on seeing the old rows, for they do not see the new ones.
            alive = alive.copy()
        alive[self._killed] = False
        dead = self._base.dead + len(self._killed)
        return Snapshot(self._columns, self._tags, self._ids, self._size, self._entries, dead, alive)

    def _append_tags(self, row: IndexRow) -> None:
        tags = sorted({self._codes.intern(tag) for tag in row.tags})
        end = self._entries + len(tags)
        if end > self._tags.capacity:
            self._tags = self._tags.copy(slice(0, self._entries), max(end, 2 * self._tags.capacity))
        self._tags.rows[self._entries : end] = self._size
        self._tags.tags[self._entries : end] = tags
        self._entries = end


def empty_vectors(capacity: int, dimensions: int, pool: VectorPool | None) -> RowVectors:
    """Return vectors of no rows, with room for `capacity` rows."""
    if pool is None:
        return OwnVectors(np.zeros((capacity, dimensions), np.float32))
    return PooledVectors(pool, np.zeros(capacity, np.int32))


def compacted(snapshot: Snapshot) -> Snapshot:
    """Return a snapshot without the dead rows, with new arrays; readers of the old one are not disturbed."""
    alive = snapshot.alive[: snapshot.size]
    kept = np.flatnonzero(alive)
    capacity = max(FIRST_CAPACITY, 2 * len(kept))
    entry_rows = snapshot.tags.rows[: snapshot.entries]
    kept_entries = np.flatnonzero(alive[entry_rows])
    tags = snapshot.tags.copy(kept_entries, max(FIRST_CAPACITY, 2 * len(kept_entries)))
    new_places = np.cumsum(alive, dtype=np.int32) - 1
    tags.rows[: len(kept_entries)] = new_places[tags.rows[: len(kept_entries)]]
    ids = [snapshot.ids[place] for place in kept.tolist()]
    return Snapshot(
        snapshot.columns.copy(kept, capacity), tags, ids, len(kept), len(kept_entries), 0, np.ones(capacity, np.bool_)
    )
