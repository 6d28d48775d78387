"""The filterable columns of the vector matrix, as arrays with one entry per row."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cstp_grpc.decisions.model import DecisionFilter
from cstp_grpc.decisions.search.row_vectors import Rows
from cstp_grpc.decisions.store import IndexRow
from cstp_grpc.enums import DecisionStatus, Outcome, Stakes, Visibility

Selector = slice | Rows
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
    """The number of None."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def intern(self, text: str | None) -> int:
        """Return the integer of a text, assigning one if it is new. Only one thread at a time may call this."""
        return self.ABSENT if text is None else self._numbers.setdefault(text, len(self._numbers) + 1)

    def find(self, text: str) -> int:
        """Return the integer of a text, or one that no row has."""
        # A text that a writer interns right now may be missed: no published row has its number yet.
        return self._numbers.get(text, -1)


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
        """Return columns without rows."""
        return cls(
            revisions=np.zeros(capacity, np.int64),
            dates=np.zeros(capacity, np.float64),
            confidences=np.zeros(capacity, np.float64),
            agents=np.zeros(capacity, np.int32),
            categories=np.zeros(capacity, np.int32),
            projects=np.zeros(capacity, np.int32),
            stakes=np.zeros(capacity, np.uint8),
            statuses=np.zeros(capacity, np.uint8),
            outcomes=np.zeros(capacity, np.uint8),
            shared=np.zeros(capacity, np.bool_),
        )

    @property
    def capacity(self) -> int:
        """How many rows fit."""
        return len(self.revisions)

    def copy(self, kept: Selector, capacity: int) -> MatrixColumns:
        """Return new columns that begin with the kept rows."""
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
        """Return a mask of the rows of an agent."""
        mask: Mask = self.agents[rows] == interner.find(caller)
        return mask

    def of_any_category(self, rows: Selector, categories: Iterable[str], interner: StringInterner) -> Mask:
        """Return a mask of the rows in one of the categories."""
        return np.isin(self.categories[rows], [interner.find(category) for category in categories])

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
        """Return columns without entries."""
        return cls(np.zeros(capacity, np.int32), np.zeros(capacity, np.int32))

    @property
    def capacity(self) -> int:
        """How many entries fit."""
        return len(self.rows)

    def copy(self, kept: Selector, capacity: int) -> TagColumns:
        """Return new columns that begin with the kept entries."""
        return TagColumns(copy_rows(self.rows, kept, capacity), copy_rows(self.tags, kept, capacity))

    def with_any_tag(self, tags: Iterable[int], entries: int, rows: int) -> Mask:
        """Return a mask of the first `rows` rows that have one of the tags, by the first `entries` entries."""
        mask = np.zeros(rows, np.bool_)
        mask[self.rows[:entries][np.isin(self.tags[:entries], list(tags))]] = True
        return mask

    def with_tag(self, tag: int, entries: int, rows: int) -> Mask:
        """Return a mask of the first `rows` rows that have a tag, by the first `entries` entries."""
        mask = np.zeros(rows, np.bool_)
        mask[self.rows[:entries][self.tags[:entries] == tag]] = True
        return mask


def copy_rows(array: NDArray[Any], kept: Selector, capacity: int) -> NDArray[Any]:
    """Return an array of length `capacity` that begins with the kept entries."""
    kept_entries = array[kept]
    copy = np.zeros((capacity, *array.shape[1:]), array.dtype)
    copy[: len(kept_entries)] = kept_entries
    return copy


def combine_bits(bits: Iterable[int]) -> int:
    """Return the bitwise OR of bits."""
    combined = 0
    for bit in bits:
        combined |= bit
    return combined
