"""What filters look at, as arrays with one entry for each row of the vector matrix."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cstp_grpc.decisions.model import DecisionFilter
from cstp_grpc.decisions.store import IndexRow
from cstp_grpc.decisions.vectors import Rows, RowVectors
from cstp_grpc.vocabulary import DecisionStatus, Outcome, Stakes, Visibility

Selector = slice | Rows
"""Which rows are looked at; a slice costs no copy."""

Mask = NDArray[np.bool_]
"""Which of the rows that are looked at pass."""

STAKES = {member: 1 << place for place, member in enumerate(Stakes)}
STATUSES = {member: 1 << place for place, member in enumerate(DecisionStatus)}
OUTCOMES = {member: 1 << place for place, member in enumerate(Outcome)}


class Codes:
    """Numbers for texts, so that comparing a column with a text compares integers. Safe for many readers."""

    ABSENT = 0
    """The number of None."""

    def __init__(self) -> None:
        self._codes: dict[str, int] = {}

    def intern(self, text: str | None) -> int:
        """Return the number of a text, a new one where it has none yet. One thread at a time may call this."""
        return self.ABSENT if text is None else self._codes.setdefault(text, len(self._codes) + 1)

    def find(self, text: str) -> int:
        """Return the number of a text, or one that no row has."""
        return self._codes.get(text, -1)


@dataclass(frozen=True, slots=True)
class Columns:
    """Arrays of the same length, most of which is room for rows to come; a row is written once.

    `vectors` are elsewhere where processes share them; `confidences` has NaN for None; `stakes`, `statuses` and
    `outcomes` have one bit for each member and none for None; texts are numbers of `Codes`.
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
    def empty(cls, capacity: int, vectors: RowVectors) -> Columns:
        """Return columns without rows; `vectors` has as much room."""
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
        """How many rows there is room for."""
        return len(self.revisions)

    def copy(self, kept: Selector, capacity: int) -> Columns:
        """Return new columns that begin with the rows that are kept."""
        arrays = (moved(getattr(self, field.name), kept, capacity) for field in fields(self)[1:])
        return Columns(self.vectors.copy(kept, capacity), *arrays)

    def write(self, place: int, row: IndexRow, codes: Codes) -> None:
        """Set the row at a place that no reader knows yet. Raises ValueError where the vector has another length."""
        self.vectors.write(place, row.vector)
        self.revisions[place] = row.revision
        self.dates[place] = row.date
        self.confidences[place] = np.nan if row.confidence is None else row.confidence
        self.agents[place] = codes.intern(row.agent)
        self.categories[place] = codes.intern(row.category)
        self.projects[place] = codes.intern(row.project)
        self.stakes[place] = 0 if row.stakes is None else STAKES[row.stakes]
        self.statuses[place] = STATUSES[row.status]
        self.outcomes[place] = 0 if row.outcome is None else OUTCOMES[row.outcome]
        self.shared[place] = row.visibility is Visibility.SHARED

    def own(self, rows: Selector, caller: str, codes: Codes) -> Mask:
        """Return which rows are an agent's own."""
        mask: Mask = self.agents[rows] == codes.find(caller)
        return mask

    def of_any_category(self, rows: Selector, categories: Iterable[str], codes: Codes) -> Mask:
        """Return which rows are of one of the categories."""
        return np.isin(self.categories[rows], [codes.find(category) for category in categories])

    def passing(self, rows: Selector, caller: str, filters: DecisionFilter, codes: Codes) -> Mask:
        """Return which rows are shared or the caller's own and meet all conditions but those on tags."""
        mask: Mask = self.shared[rows] | self.own(rows, caller, codes)
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
            (self.stakes, bits_of(STAKES[member] for member in filters.stakes)),
            (self.statuses, bits_of(STATUSES[member] for member in filters.status)),
            (self.outcomes, bits_of(OUTCOMES[member] for member in filters.outcome)),
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
    """The tags of all rows: entry for entry a row and a number of `Codes`, by rising row."""

    rows: NDArray[np.int32]
    tags: NDArray[np.int32]

    @classmethod
    def empty(cls, capacity: int) -> TagColumns:
        """Return columns without entries."""
        return cls(np.zeros(capacity, np.int32), np.zeros(capacity, np.int32))

    @property
    def capacity(self) -> int:
        """How many entries there is room for."""
        return len(self.rows)

    def copy(self, kept: Selector, capacity: int) -> TagColumns:
        """Return new columns that begin with the entries that are kept."""
        return TagColumns(moved(self.rows, kept, capacity), moved(self.tags, kept, capacity))

    def having_any(self, tags: Iterable[int], entries: int, rows: int) -> Mask:
        """Return which of the first `rows` rows have one of the tags, by the first `entries` entries."""
        mask = np.zeros(rows, np.bool_)
        mask[self.rows[:entries][np.isin(self.tags[:entries], list(tags))]] = True
        return mask

    def having(self, tag: int, entries: int, rows: int) -> Mask:
        """Return which of the first `rows` rows have a tag, by the first `entries` entries."""
        mask = np.zeros(rows, np.bool_)
        mask[self.rows[:entries][self.tags[:entries] == tag]] = True
        return mask


def moved(array: NDArray[Any], kept: Selector, capacity: int) -> NDArray[Any]:
    """Return an array of a new length that begins with the entries that are kept."""
    kept_entries = array[kept]
    copy = np.zeros((capacity, *array.shape[1:]), array.dtype)
    copy[: len(kept_entries)] = kept_entries
    return copy


def bits_of(bits: Iterable[int]) -> int:
    """Return the bits together."""
    together = 0
    for bit in bits:
        together |= bit
    return together
