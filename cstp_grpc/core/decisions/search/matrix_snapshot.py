"""The rows of the vector matrix at one moment: columns for filters, vectors of passages, and how the next is built."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cstp_grpc.common.lazy_dataclass import dataclass, fields
from cstp_grpc.contract.enums import DecisionStatus, Outcome, Stakes, Visibility
from cstp_grpc.core.decisions.decision_terms import Terms
from cstp_grpc.core.decisions.model import DecisionFilter
from cstp_grpc.core.decisions.search import row_vectors
from cstp_grpc.core.decisions.search.word_index import SHARED, WordIndex
from cstp_grpc.core.decisions.store import ErasedRow, IndexRow, PassageVectors, Vector, Vectors

Selector = slice | row_vectors.Rows
"""The rows to examine. A slice makes numpy return views, an array of row numbers copies."""

Mask = NDArray[np.bool_]
"""One boolean for each examined row: whether it passes."""

# One bit for each member, so that a filter on several members is one AND over the column. Each enum must have at most
# eight members, because the columns are uint8.
STAKES_BITS = {member: 1 << position for position, member in enumerate(Stakes)}
STATUS_BITS = {member: 1 << position for position, member in enumerate(DecisionStatus)}
OUTCOME_BITS = {member: 1 << position for position, member in enumerate(Outcome)}


class StringInterner:
    """Integers for texts, so that comparing a column with a text compares integers. Safe for many readers.

    Numbers are never removed, even if no row has the text any more.
    """

    ABSENT = 0
    """The number that stands for None."""

    def __init__(self, texts: Sequence[str | None] = ()) -> None:
        """Give texts the numbers from 1 on; None stands for a number that no text has."""
        self._numbers = {text: number for number, text in enumerate(texts, 1) if text is not None}
        self._last = len(texts)

    def intern(self, text: str | None) -> int:
        """Return the integer of a text, assigning one if it is new. Only one thread at a time may call this."""
        if text is None:
            return self.ABSENT
        number = self._numbers.setdefault(text, self._last + 1)
        self._last = max(self._last, number)
        return number

    def texts(self, used: set[int]) -> list[str | None]:
        """Return the texts in the order of their numbers, with None for numbers that are not used."""
        # A copy, since a writer may add texts meanwhile.
        texts = {number: text for text, number in self._numbers.copy().items() if number in used}
        return [texts.get(number) for number in range(1, max(texts, default=0) + 1)]

    def find(self, text: str) -> int:
        """Return the integer of a text, or one that no row has."""
        # A text that a writer interns right now may be missed: no published row has its number yet.
        return self._numbers.get(text, -1)


COLUMN_TYPES: tuple[Any, ...] = (np.int64, np.float64, np.float64, *(np.int32,) * 3, *(np.uint8,) * 3, np.bool_)
"""The types of the columns in their order."""


@dataclass(frozen=True, slots=True)
class MatrixColumns:
    """Arrays of equal length with spare capacity for later rows; a row is written once.

    `confidences` has NaN for None; `stakes`, `statuses` and `outcomes` have one
    bit per member and none for None; texts are integers of `StringInterner`.
    """

    revisions: NDArray[np.int64]
    dates: NDArray[np.float64]
    confidences: NDArray[np.float64]
    agents: NDArray[np.int32]
    categories: NDArray[np.int32]
    projects: NDArray[np.int32]
    stakes: NDArray[np.uint8]
    statuses: NDArray[np.uint8]
    outcomes: NDArray[np.uint8]
    shared: Mask

    @classmethod
    def empty(cls, capacity: int) -> MatrixColumns:
        return cls(*(np.zeros(capacity, kind) for kind in COLUMN_TYPES))

    @property
    def capacity(self) -> int:
        return len(self.revisions)

    def copy(self, kept: Selector, capacity: int) -> MatrixColumns:
        return MatrixColumns(*(copy_rows(getattr(self, field.name), kept, capacity) for field in fields(self)))

    def write(self, position: int, row: IndexRow, interner: StringInterner) -> None:
        """Write a row that no reader knows yet."""
        self.revisions[position] = row.revision
        self.dates[position] = row.date
        self.confidences[position] = np.nan if row.confidence is None else row.confidence
        self.agents[position] = interner.intern(row.agent)
        self.categories[position] = interner.intern(row.category)
        self.projects[position] = interner.intern(row.project)
        self.stakes[position] = 0 if row.stakes is None else STAKES_BITS[row.stakes]
        self.statuses[position] = STATUS_BITS[row.status]
        self.outcomes[position] = 0 if row.outcome is None else OUTCOME_BITS[row.outcome]
        self.shared[position] = row.visibility is Visibility.SHARED

    def owned_by(self, rows: Selector, caller: str, interner: StringInterner) -> Mask:
        mask: Mask = self.agents[rows] == interner.find(caller)
        return mask

    def matching(self, rows: Selector, caller: str, filters: DecisionFilter, interner: StringInterner) -> Mask:
        """Return a mask of the rows that the caller may read and that meet all conditions but those on tags."""
        mask: Mask = self.shared[rows] | self.owned_by(rows, caller, interner)
        for numbers, text in (
            (self.agents, filters.agent),
            (self.categories, filters.category),
            (self.projects, filters.project),
        ):
            if text is not None:
                mask &= numbers[rows] == interner.find(text)
        if filters.without_agent is not None:
            mask &= self.agents[rows] != interner.find(filters.without_agent)
        for column, accepted in (
            (self.stakes, combine_bits(STAKES_BITS[member] for member in filters.stakes)),
            (self.statuses, combine_bits(STATUS_BITS[member] for member in filters.status)),
            (self.outcomes, combine_bits(OUTCOME_BITS[member] for member in filters.outcome)),
        ):
            if accepted:
                mask &= (column[rows] & np.uint8(accepted)) != 0
        # NaN, a missing confidence, compares false with every bound.
        if filters.min_confidence is not None:
            mask &= self.confidences[rows] >= filters.min_confidence
        if filters.max_confidence is not None:
            mask &= self.confidences[rows] <= filters.max_confidence
        if filters.date_after is not None:
            mask &= self.dates[rows] >= filters.date_after.timestamp()
        if filters.date_before is not None:
            mask &= self.dates[rows] <= filters.date_before.timestamp()
        return mask


@dataclass(frozen=True, slots=True)
class TagColumns:
    """The tags of all rows: each entry is a row number and an integer of `StringInterner`, by rising row."""

    rows: NDArray[np.int32]
    tags: NDArray[np.int32]

    @classmethod
    def empty(cls, capacity: int) -> TagColumns:
        return cls(np.zeros(capacity, np.int32), np.zeros(capacity, np.int32))

    @property
    def capacity(self) -> int:
        return len(self.rows)

    def copy(self, kept: Selector, capacity: int) -> TagColumns:
        return TagColumns(copy_rows(self.rows, kept, capacity), copy_rows(self.tags, kept, capacity))


def copy_rows(array: NDArray[Any], kept: Selector, capacity: int) -> NDArray[Any]:
    """Return an array of length `capacity` that begins with the kept entries."""
    kept_entries = array[kept]
    copy = np.zeros((capacity, *array.shape[1:]), array.dtype)
    copy[: len(kept_entries)] = kept_entries
    return copy


def combine_bits(bits: Iterable[int]) -> int:
    combined = 0
    for bit in bits:
        combined |= bit
    return combined


@dataclass(frozen=True, slots=True)
class PassageRows:
    """The passages of rows, in the order of the rows; each row has at least one.

    `starts` has the first passage of each row, with spare capacity, `has_lesson` whether its last one is a lesson;
    `vectors` are those of all passages, of which `capacity` fit.
    """

    vectors: row_vectors.RowVectors
    capacity: int
    starts: NDArray[np.int64]
    has_lesson: NDArray[np.bool_]

    @classmethod
    def empty(cls, capacity: int, dimensions: int, pool: row_vectors.SharedVectorPool | None) -> PassageRows:
        vectors: row_vectors.RowVectors
        if pool is None:
            vectors = row_vectors.LocalVectors.empty(capacity, dimensions)
        else:
            vectors = row_vectors.SharedVectors(pool, np.zeros(capacity, np.int32))
        return cls(vectors, capacity, np.zeros(capacity, np.int64), np.zeros(capacity, np.bool_))

    def with_room(self, rows: int, row_capacity: int, passages: int, added: int) -> PassageRows:
        """Return passages that begin with those of the first `rows`, with room for `added` more beyond `passages`.

        They have capacity for `row_capacity` rows. Returns this object if its capacity suffices.
        """
        grown = self
        if len(self.starts) < row_capacity:
            starts, has_lesson = (copy_rows(each, slice(rows), row_capacity) for each in (self.starts, self.has_lesson))
            grown = PassageRows(self.vectors, self.capacity, starts, has_lesson)
        if passages + added > self.capacity:
            capacity = max(2 * self.capacity, passages + added)
            vectors = self.vectors.copy(slice(0, passages), capacity)
            grown = PassageRows(vectors, capacity, grown.starts, grown.has_lesson)
        return grown

    def write(self, row: int, start: int, passages: PassageVectors) -> int:
        """Write the passages of a row that no reader knows yet, and return the end of them.

        Raises ValueError if the length of a vector is wrong.
        """
        for place, vector in enumerate(passages.vectors, start):
            self.vectors.write(place, vector)
        self.starts[row], self.has_lesson[row] = start, passages.has_lesson
        return start + len(passages.vectors)


INITIAL_CAPACITY = 256
"""Initial number of rows with memory. Chosen: small, since growth doubles it and so copies each row twice at most."""


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
    def empty(cls, capacity: int, dimensions: int, pool: row_vectors.SharedVectorPool | None) -> MatrixSnapshot:
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

    def best_of(self, rows: row_vectors.Rows, query: Vector) -> row_vectors.Scores:
        """Return the similarity of the best passage of some rows."""
        numbers, firsts = self.passage_numbers(rows)
        products = self.passages.vectors.products_of(numbers, query)
        return products if len(products) == len(rows) else np.maximum.reduceat(products, firsts)

    def best_of_each(self, scores: row_vectors.Scores) -> row_vectors.Scores:
        """Return the best score of each row; `scores` are those of all passages."""
        if len(scores) == self.size:
            return scores
        starts = self.passages.starts[: self.size]
        lasts = np.append(starts[1:], self.passage_count) - 1
        longer = np.flatnonzero(lasts - starts > 1)
        if 2 * len(longer) > self.size:
            return np.maximum.reduceat(scores, starts)
        # The first and the last passage are all that most rows have; `reduceat` takes ten times as long.
        best = np.maximum(scores.take(starts), scores.take(lasts))
        if len(longer):
            bounds = np.column_stack([starts[longer], lasts[longer]]).ravel()
            best[longer] = np.maximum(best[longer], np.maximum.reduceat(scores, bounds)[::2])
        return best

    def take(self, rows: row_vectors.Rows) -> tuple[Vectors, NDArray[np.int64]]:
        """Return the vectors of the passages of some rows, and where those of each row begin among them."""
        numbers, firsts = self.passage_numbers(rows)
        return self.passages.vectors.take(numbers), firsts

    def passage_numbers(self, rows: row_vectors.Rows) -> tuple[row_vectors.Rows, NDArray[np.int64]]:
        """Return the numbers of the passages of some rows, and where those of each row begin among them."""
        # Each row has one passage, so that rows and passages have the same numbers.
        if self.passage_count == self.size:
            return rows, np.arange(len(rows))
        starts = self.passages.starts[rows]
        # The passages of a row end where those of the next row begin.
        counts = np.append(self.passages.starts[1 : self.size], self.passage_count)[rows] - starts
        firsts = np.cumsum(counts) - counts
        # The numbers from each start on, one row after the other, without a loop over the rows.
        return np.repeat(starts - firsts, counts) + np.arange(int(counts.sum())), firsts

    def with_any_tag(self, tags: Sequence[int]) -> Mask:
        mask, present = np.zeros(self.size, np.bool_), self.tags.tags[: self.entries]
        # One tag is the usual case, and comparing is 40 times as fast as `isin` (measured).
        found = present == tags[0] if len(tags) == 1 else np.isin(present, tags)
        mask[self.tags.rows[: self.entries][found]] = True
        return mask


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


class LiveRows(NamedTuple):
    """The rows of a snapshot that are not dead, in arrays without spare capacity; the vectors are their passages'."""

    columns: MatrixColumns
    passages: row_vectors.Rows
    starts: NDArray[np.int64]
    has_lesson: Mask
    words: WordIndex
    tags: TagColumns
    ids: list[str]

    @classmethod
    def of(cls, snapshot: MatrixSnapshot) -> LiveRows:
        alive = snapshot.alive[: snapshot.size]
        kept = np.flatnonzero(alive)
        kept_entries = np.flatnonzero(alive[snapshot.tags.rows[: snapshot.entries]])
        tags = snapshot.tags.copy(kept_entries, len(kept_entries))
        # The new row of a kept one is the number of kept rows before it.
        new_positions = np.cumsum(alive, dtype=np.int32) - 1
        tags.rows[:] = new_positions[tags.rows]
        numbers, starts = snapshot.passage_numbers(kept)
        return cls(
            snapshot.columns.copy(kept, len(kept)),
            numbers,
            starts,
            snapshot.passages.has_lesson[kept],
            snapshot.words.compacted(alive, new_positions),
            tags,
            [snapshot.ids[position] for position in kept.tolist()],
        )

    def capacities(self) -> tuple[int, int, int]:
        """Return how many rows, passages and tags there should be room for."""
        rows = max(INITIAL_CAPACITY, 2 * len(self.ids))
        return rows, max(rows, 2 * len(self.passages)), max(INITIAL_CAPACITY, 2 * len(self.tags.rows))


def compact_snapshot(snapshot: MatrixSnapshot) -> MatrixSnapshot:
    """Return a snapshot without the dead rows, in new arrays; readers of the old one are not affected."""
    live, every = LiveRows.of(snapshot), slice(None)
    capacity, room, tag_capacity = live.capacities()
    return MatrixSnapshot(
        live.columns.copy(every, capacity),
        PassageRows(
            snapshot.passages.vectors.copy(live.passages, room),
            room,
            copy_rows(live.starts, every, capacity),
            copy_rows(live.has_lesson, every, capacity),
        ),
        live.words,
        live.tags.copy(every, tag_capacity),
        live.ids,
        len(live.ids),
        len(live.passages),
        len(live.tags.rows),
        0,
        np.ones(capacity, np.bool_),
    )
