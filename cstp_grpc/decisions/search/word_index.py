"""The inverted index of the terms of all rows: which rows have a term, and how much it says about each.

It is a list of immutable segments, merged so that each is less than half as long as the one before it. So a new row is
found at once, adding one costs little on average, and readers need no lock.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cstp_grpc.decisions.decision_terms import Terms

MAX_POSTINGS = 400_000
"""Occurrences read for one query, about two milliseconds. The most frequent terms, which say least, are left out."""

Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Postings:
    """The rows in which one term occurs, in rising order, with its impact and the bits of `TermField` for each."""

    rows: NDArray[np.int32]
    impacts: NDArray[np.float16]
    fields: NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Segment:
    """The postings of some consecutive rows, sorted by the hash of their term, then by row."""

    hashes: NDArray[np.uint32]
    postings: Postings

    def __len__(self) -> int:
        return len(self.hashes)

    @classmethod
    def sorted_by_term(cls, hashes: NDArray[np.uint32], postings: Postings) -> Segment:
        """Return the segment of postings that are sorted by row."""
        # Stable, so that the rows of a term stay in rising order; it merges two sorted runs in one pass.
        order = np.argsort(hashes, kind="stable")
        return cls(hashes[order], Postings(postings.rows[order], postings.impacts[order], postings.fields[order]))


@dataclass(frozen=True, slots=True)
class WordIndex:
    """The segments of all rows, in the order of their rows."""

    segments: tuple[Segment, ...] = ()

    def with_rows(self, first_row: int, terms: Sequence[Terms]) -> WordIndex:
        """Return an index with the terms of more rows, which follow all others from `first_row` on."""
        counts = [len(each) for each in terms]
        if not sum(counts):
            return self
        joined = np.concatenate(terms)
        rows = np.repeat(np.arange(first_row, first_row + len(terms), dtype=np.int32), counts)
        postings = Postings(rows, joined["impact"].copy(), joined["fields"].copy())
        segments = [*self.segments, Segment.sorted_by_term(joined["hash"].astype(np.uint32), postings)]
        while len(segments) > 1 and 2 * len(segments[-1]) > len(segments[-2]):
            segments[-2:] = [merge_segments(segments[-2:])]
        return WordIndex(tuple(segments))

    def compacted(self, alive: Mask, new_rows: NDArray[np.int32]) -> WordIndex:
        """Return an index without the rows that are not alive; the others get the numbers in `new_rows`."""
        if not self.segments:
            return self
        whole = merge_segments(self.segments)
        kept = alive[whole.postings.rows]
        postings = whole.postings
        return WordIndex(
            (
                Segment(
                    whole.hashes[kept],
                    Postings(new_rows[postings.rows[kept]], postings.impacts[kept], postings.fields[kept]),
                ),
            )
        )

    def find(self, hashes: Sequence[int], readable: Mask) -> Iterator[tuple[int, Postings]]:
        """Yield the place of each term in `hashes` with its postings in readable rows, rare terms first.

        Terms beyond `MAX_POSTINGS` are left out, also in the count of what a caller may not read.
        """
        wanted = np.array(hashes, np.uint32)
        spans = [
            (segment, np.searchsorted(segment.hashes, wanted, "left"), np.searchsorted(segment.hashes, wanted, "right"))
            for segment in self.segments
        ]
        totals = sum((ends - starts for _, starts, ends in spans), np.zeros(len(wanted), np.int64))
        read = 0
        for place in np.argsort(totals, kind="stable").tolist():
            read += int(totals[place])
            if read > MAX_POSTINGS:
                return
            found = [
                slice_postings(segment.postings, int(starts[place]), int(ends[place]))
                for segment, starts, ends in spans
                if starts[place] < ends[place]
            ]
            yield place, keep_readable(join_postings(found), readable) if found else NO_POSTINGS


NO_POSTINGS = Postings(np.empty(0, np.int32), np.empty(0, np.float16), np.empty(0, np.uint8))


def merge_segments(segments: Sequence[Segment]) -> Segment:
    """Return one segment with the postings of segments in the order of their rows."""
    return Segment.sorted_by_term(
        np.concatenate([each.hashes for each in segments]), join_postings([each.postings for each in segments])
    )


def join_postings(parts: Sequence[Postings]) -> Postings:
    """Return the postings of all parts, one after the other."""
    if len(parts) == 1:
        return parts[0]
    return Postings(
        np.concatenate([each.rows for each in parts]),
        np.concatenate([each.impacts for each in parts]),
        np.concatenate([each.fields for each in parts]),
    )


def slice_postings(postings: Postings, start: int, end: int) -> Postings:
    """Return the postings from `start` to `end`."""
    return Postings(postings.rows[start:end], postings.impacts[start:end], postings.fields[start:end])


def keep_readable(postings: Postings, readable: Mask) -> Postings:
    """Return the postings in readable rows."""
    kept = readable[postings.rows]
    if kept.all():
        return postings
    return Postings(postings.rows[kept], postings.impacts[kept], postings.fields[kept])


def inverse_document_frequency(rows: int, with_term: int) -> float:
    """Return the weight of a term that `with_term` of `rows` have (Robertson and Zaragoza, 2009, without negatives)."""
    return math.log(1 + (rows - with_term + 0.5) / (with_term + 0.5))
