"""The filterable columns of the vector matrix, as arrays with one entry per row."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cstp_grpc.decisions.model import DecisionFilter
from cstp_grpc.decisions.search.row_vectors import Rows, RowVectors
from cstp_grpc.decisions.store import IndexRow
from cstp_grpc.enums import DecisionStatus, Outcome, Stakes, Visibility

Selector = slice | Rows
"""Which rows are looked at; a slice costs no copy."""

Mask = NDArray[np.bool_]
"""Which of the rows that are looked at pass."""

STAKES_BITS = {member: 1 << place for place, member in enumerate(Stakes)}
STATUS_BITS = {member: 1 << place for place, member in enumerate(DecisionStatus)}
OUTCOME_BITS = {member: 1 << place for place, member in enumerate(Outcome)}


class StringInterner:
    """Integers for texts, so that comparing a column with a text compares integers. Safe for many readers."""

    ABSENT = 0
    """The number of None."""

    def __init__(self) -> None:
        self._codes: dict[str, int] = {}

    def intern(self, text: str | None) -> int:
        """Return the integer of a text, assigning one if it is new. Only one thread at a time may call this."""
        return self.ABSENT if text is None else self._codes.setdefault(text, len(self._codes) + 1)

    def find(self, text: str) -> int:
        """Return the integer of a text, or one that no row has."""
        return self._codes.get(text, -1)


@dataclass(frozen=True, slots=True)
class MatrixColumns:
    """Arrays of equal length with spare capacity for later rows; a row is written once.

    `vectors` may be shared by processes; `confidences` has NaN for None; `stakes`, `statuses` and `outcomes` have one
    bit per member and none for None; texts are integers of `StringInterner`.
    """

    vectors: RowVectors
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
    def empty(cls, capacity: int, vectors: RowVectors) -> MatrixColumns:
        """Return columns without rows; `vectors` must have the same capacity."""
        return cls(
            vectors=vectors,
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
        arrays = (copy_rows(getattr(self, field.name), kept, capacity) for field in fields(self)[1:])
        return MatrixColumns(self.vectors.copy(kept, capacity), *arrays)

    def write(self, place: int, row: IndexRow, codes: StringInterner) -> None:
        """Write a row at a place that no reader knows yet. Raises ValueError if the vector's length is wrong."""
        self.vectors.write(place, row.vector)
        self.revisions[place] = row.revision
        self.dates[place] = row.date
        self.confidences[place] = np.nan if row.confidence is None else row.confidence
        self.agents[place] = codes.intern(row.agent)
        self.categories[place] = codes.intern(row.category)
        self.projects[place] = codes.intern(row.project)
        self.stakes[place] = 0 if row.stakes is None else STAKES_BITS[row.stakes]
        self.statuses[place] = STATUS_BITS[row.status]
        self.outcomes[place] = 0 if row.outcome is None else OUTCOME_BITS[row.outcome]
        self.shared[place] = row.visibility is Visibility.SHARED

    def owned_by(self, rows: Selector, caller: str, codes: StringInterner) -> Mask:
        """Return a mask of the rows of an agent."""
        mask: Mask = self.agents[rows] == codes.find(caller)
        return mask

    def of_any_category(self, rows: Selector, categories: Iterable[str], codes: StringInterner) -> Mask:
        """Return a mask of the rows in one of the categories."""
        return np.isin(self.categories[rows], [codes.find(category) for category in categories])

    def matching(self, rows: Selector, caller: str, filters: DecisionFilter, codes: StringInterner) -> Mask:
        """Return a mask of the rows that the caller may read and that meet all conditions but those on tags."""
        mask: Mask = self.shared[rows] | self.owned_by(rows, caller, codes)
        for texts, text in (
            (self.agents, filters.agent),
            (self.categories, filters.category),
            (self.projects, filters.project),
        ):
            if text is not None:
                mask &= texts[rows] == codes.find(text)
        if filters.without_agent is not None:
            mask &= self.agents[rows] != codes.find(filters.without_agent)
        for bits, wanted in (
            (self.stakes, combine_bits(STAKES_BITS[member] for member in filters.stakes)),
            (self.statuses, combine_bits(STATUS_BITS[member] for member in filters.status)),
            (self.outcomes, combine_bits(OUTCOME_BITS[member] for member in filters.outcome)),
        ):
            if wanted:
                mask &= (bits[rows] & np.uint8(wanted)) != 0
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
    together = 0
    for bit in bits:
        together |= bit
    return together
