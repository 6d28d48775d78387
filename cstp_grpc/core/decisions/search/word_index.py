"""The inverted index of the terms of all rows: which rows have a term, and how much it says about each.

It is a list of immutable segments, merged so that each is less than half as long as the one before it. So a new row is
found at once, adding one costs little on average, and readers need no lock.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cstp_grpc.common.lazy_dataclass import dataclass
from cstp_grpc.core.decisions.decision_terms import TERM_TYPE, Terms

MAX_POSTINGS = 400_000
"""Occurrences read for one query, about two milliseconds. The most frequent terms, which say least, are left out."""

SHARED = 0
"""Stands for all agents; an agent that alone reads its private rows has a greater number."""

Mask = NDArray[np.bool_]
Keys = NDArray[np.uint64]
"""Each is the hash of a term, then the reader of the rows: an agent's number or `SHARED`, in 32 bits each."""


class Postings(NamedTuple):
    """The rows in which one term occurs, each once, with its impact and the bits of `TermField` for each."""

    rows: NDArray[np.int32]
    impacts: NDArray[np.float16]
    fields: NDArray[np.uint8]

    def at(self, places: slice | NDArray[Any]) -> Postings:
        return Postings(self.rows[places], self.impacts[places], self.fields[places])


@dataclass(frozen=True, slots=True)
class Segment:
    """The postings of some consecutive rows, sorted by their key, then by row.

    `keys` has each key once; its postings begin at its place in `starts`, whose last item is their end.
    """

    keys: Keys
    starts: NDArray[np.int64]
    postings: Postings

    def __len__(self) -> int:
        return int(self.starts[-1])

    @classmethod
    def sorted_by_key(cls, keys: Keys, postings: Postings) -> Segment:
        # Stable, so that the rows of a key stay in rising order; it merges two sorted runs in one pass.
        order = np.argsort(keys, kind="stable")
        ordered = keys[order]
        starts = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1]))
        return cls(ordered[starts], np.append(starts, len(ordered)), postings.at(order))

    def posting_keys(self) -> Keys:
        return np.repeat(self.keys, np.diff(self.starts))

    def find(self, keys: Keys) -> Iterable[tuple[int, int, int]]:
        """Return the place of each of `keys` that occurs, and where its postings begin and end."""
        # A place behind the last key, where there is no key, is compared with the last one, which is smaller.
        places = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        found = np.flatnonzero(self.keys[places] == keys)
        places = places[found]
        return zip(found.tolist(), self.starts[places].tolist(), self.starts[places + 1].tolist(), strict=True)


@dataclass(frozen=True, slots=True)
class WordIndex:
    """The segments of all rows, in the order of their rows; none is empty.

    The private rows of agents are apart from each other and from shared ones, so that a search neither reads nor counts
    the private rows of others.
    """

    segments: tuple[Segment, ...] = ()

    def with_rows(self, first_row: int, terms: Sequence[Terms], readers: NDArray[np.int32]) -> WordIndex:
        """Return an index with the terms of more rows, which follow all others from `first_row` on.

        `readers` has the agent that alone reads a row, or `SHARED`, for each of them.
        """
        counts = [len(each) for each in terms]
        if not sum(counts):
            return self
        # With its type, which numpy would otherwise derive from each array.
        joined = np.concatenate(terms, dtype=TERM_TYPE)
        rows = np.repeat(np.arange(first_row, first_row + len(terms), dtype=np.int32), counts)
        postings = Postings(rows, joined["impact"].copy(), joined["fields"].copy())
        keys = term_keys(joined["hash"], np.repeat(readers, counts))
        segments = [*self.segments, Segment.sorted_by_key(keys, postings)]
        while len(segments) > 1 and 2 * len(segments[-1]) > len(segments[-2]):
            segments[-2:] = [merge_segments(segments[-2:])]
        return WordIndex(tuple(segments))

    def compacted(self, alive: Mask, new_rows: NDArray[np.int32]) -> WordIndex:
        """Return an index without the rows that are not alive; the others get the numbers in `new_rows`."""
        if not self.segments:
            return self
        whole = merge_segments(self.segments)
        kept = alive[whole.postings.rows]
        if not kept.any():
            return WordIndex()
        postings = whole.postings.at(kept)
        renumbered = postings._replace(rows=new_rows[postings.rows])
        return WordIndex((Segment.sorted_by_key(whole.posting_keys()[kept], renumbered),))

    def find(self, hashes: Sequence[int], reader: int, readable: Mask) -> FoundTerms:
        """Return the terms in `hashes` with their postings in readable rows, rare terms first.

        Terms beyond `MAX_POSTINGS` are left out. Private rows of others do not count for that limit; recently replaced
        rows do, and shared rows that the read policy hides from a peer.
        """
        readers = np.array([SHARED, reader] if reader > SHARED else [SHARED])
        # By reader, then by term.
        wanted = term_keys(np.array(hashes, np.uint32), readers[:, None]).ravel()
        found: list[list[Postings]] = [[] for _ in hashes]
        totals = [0] * len(hashes)
        for segment in self.segments:
            for key, start, end in segment.find(wanted):
                place = key % len(hashes)
                totals[place] += end - start
                found[place].append(segment.postings.at(slice(start, end)))
        places, read = [], 0
        for place in sorted(range(len(hashes)), key=totals.__getitem__):
            read += totals[place]
            if read > MAX_POSTINGS:
                break
            places.append(place)
        parts = [part for place in places for part in found[place]]
        if not parts:
            return FoundTerms(places, [0] * len(places), NO_POSTINGS)
        # Of all terms together, since each operation of numpy takes as long as many of these postings.
        postings = join_postings(parts)
        counts = [totals[place] for place in places]
        kept = readable[postings.rows]
        if not kept.all():
            terms = np.repeat(np.arange(len(places)), counts)
            counts, postings = np.bincount(terms[kept], minlength=len(places)).tolist(), postings.at(kept)
        return FoundTerms(places, counts, postings)


@dataclass(frozen=True, slots=True)
class FoundTerms:
    """The places of terms among those that were asked for, how many postings each has, and these, term by term."""

    places: Sequence[int]
    counts: Sequence[int]
    postings: Postings


NO_POSTINGS = Postings(np.empty(0, np.int32), np.empty(0, np.float16), np.empty(0, np.uint8))


def term_keys(hashes: NDArray[np.uint32], readers: NDArray[np.integer[Any]]) -> Keys:
    return (hashes.astype(np.uint64) << np.uint64(32)) | readers.astype(np.uint64)


def merge_segments(segments: Sequence[Segment]) -> Segment:
    """Return one segment with the postings of segments in the order of their rows."""
    return Segment.sorted_by_key(
        np.concatenate([each.posting_keys() for each in segments]), join_postings(each.postings for each in segments)
    )


def join_postings(parts: Iterable[Postings]) -> Postings:
    return Postings(*map(np.concatenate, zip(*parts, strict=True)))


def inverse_document_frequency(rows: int, with_term: int) -> float:
    """Return the weight of a term that `with_term` of `rows` have (Robertson and Zaragoza, 2009, without negatives)."""
    return math.log(1 + (rows - with_term + 0.5) / (with_term + 0.5))
