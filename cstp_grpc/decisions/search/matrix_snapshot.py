"""The rows of the vector matrix at one moment, and how the next moment is built beside it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cstp_grpc.decisions.decision_terms import Terms
from cstp_grpc.decisions.search.matrix_columns import Mask, MatrixColumns, StringInterner, TagColumns
from cstp_grpc.decisions.search.passage_rows import PassageRows
from cstp_grpc.decisions.search.row_vectors import ParallelDotProduct, Rows, SharedVectorPool
from cstp_grpc.decisions.search.word_index import SHARED, WordIndex
from cstp_grpc.decisions.store import ErasedRow, IndexRow, Vector

INITIAL_CAPACITY = 256
"""Initial number of rows with memory. Chosen: small, since growth doubles it and so copies each row twice at most."""

DENSE_SHARE = 0.5
"""The share of passing rows from which scoring all rows in memory order is faster than gathering those that pass."""


@dataclass(frozen=True, slots=True)
class MatrixSnapshot:
    """The rows at one moment: the first `size`, without those that are dead by then."""

    columns: MatrixColumns
    passages: PassageRows
    words: WordIndex
    tags: TagColumns
    ids: list[str]
    """Decision ids by row. Later snapshots append to the same list, so only the first `size` belong to this one."""
    size: int
    passage_count: int
    entries: int
    dead: int
    alive: Mask
    """Whether a row is the current one of its decision; as long as the capacity, with true for rows not yet written."""

    @classmethod
    def empty(cls, capacity: int, dimensions: int, pool: SharedVectorPool | None) -> MatrixSnapshot:
        """Return a snapshot without rows, with room for `capacity`."""
        return cls(
            columns=MatrixColumns.empty(capacity),
            passages=PassageRows.empty(capacity, dimensions, pool),
            words=WordIndex(),
            tags=TagColumns.empty(capacity),
            ids=[],
            size=0,
            passage_count=0,
            entries=0,
            dead=0,
            alive=np.ones(capacity, np.bool_),
        )

    def similarities(self, rows: Rows, query: Vector, scorer: ParallelDotProduct) -> NDArray[np.float32]:
        """Return the similarity of the best passage of each of the rows to a query."""
        if len(rows) < DENSE_SHARE * self.size:
            return self.passages.best_of(rows, self.size, self.passage_count, query)
        scores = self.passages.best_of_all(self.size, self.passage_count, query, scorer)
        return scores if len(rows) == self.size else scores[rows]


class SnapshotBuilder:
    """Builds the next snapshot in rows beyond those that readers of the present one use; one builder at a time."""

    def __init__(
        self, base: MatrixSnapshot, position_of: dict[str, int], interner: StringInterner, erased: dict[str, int]
    ) -> None:
        self._base = base
        self._erased = erased
        self._columns = base.columns
        self._passages = base.passages
        self._passage_count = base.passage_count
        self._terms: list[Terms] = []
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
        self._passages = self._passages.with_room(
            self._size, self._columns.capacity, self._passage_count, len(row.passages.vectors)
        )
        # Into arrays that readers share, at a row that no published `size` includes. The passages first, because they
        # alone can raise: a row is then either complete or not there.
        end = self._passages.write(self._size, self._passage_count, row.passages)
        self._columns.write(self._size, row, self._interner)
        self._passage_count = end
        self._terms.append(row.terms)
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
        added = slice(self._base.size, self._size)
        readers = np.where(self._columns.shared[added], SHARED, self._columns.agents[added]).astype(np.int32)
        return MatrixSnapshot(
            self._columns,
            self._passages,
            self._base.words.with_rows(self._base.size, self._terms, readers),
            self._tags,
            self._ids,
            self._size,
            self._passage_count,
            self._entries,
            dead,
            alive,
        )

    def _append_tags(self, row: IndexRow) -> None:
        tags = sorted({self._interner.intern(tag) for tag in row.tags})
        end = self._entries + len(tags)
        if end > self._tags.capacity:
            self._tags = self._tags.copy(slice(0, self._entries), max(end, 2 * self._tags.capacity))
        self._tags.rows[self._entries : end] = self._size
        self._tags.tags[self._entries : end] = tags
        self._entries = end


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
    passages, passage_count = snapshot.passages.kept(kept, snapshot.size, snapshot.passage_count, capacity)
    return MatrixSnapshot(
        snapshot.columns.copy(kept, capacity),
        passages,
        snapshot.words.compacted(alive, new_positions),
        tags,
        ids,
        len(kept),
        passage_count,
        len(kept_entries),
        0,
        np.ones(capacity, np.bool_),
    )
