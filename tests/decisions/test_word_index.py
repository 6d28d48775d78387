"""The inverted index, compared with a look at the terms of each row."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cstp_grpc.decisions.decision_terms import TERM_TYPE, Terms
from cstp_grpc.decisions.search.word_index import WordIndex
from tests.decisions.rows import HASHES, terms

batches = st.lists(st.lists(terms, max_size=5), max_size=8)


def index_of(batches: Sequence[Sequence[Terms]]) -> WordIndex:
    index, row = WordIndex(), 0
    for batch in batches:
        index = index.with_rows(row, batch)
        row += len(batch)
    return index


def found_in(index: WordIndex, readable: Sequence[bool]) -> dict[int, list[tuple[int, float, int]]]:
    """What the index finds, by hash."""
    found = {}
    for place, postings in index.find(HASHES, np.array(readable, np.bool_)):
        entries = zip(postings.rows.tolist(), postings.impacts.tolist(), postings.fields.tolist(), strict=True)
        found[HASHES[place]] = list(entries)
    return found


def expected(rows: Sequence[Terms], readable: Sequence[bool]) -> dict[int, list[tuple[int, float, int]]]:
    return {
        key: [
            (row, float(entry["impact"]), int(entry["fields"]))
            for row, each in enumerate(rows)
            if readable[row]
            for entry in each[each["hash"] == key]
        ]
        for key in HASHES
    }


@given(batches, st.data())
def test_it_finds_the_readable_rows_of_each_term(batches: list[list[Terms]], data: st.DataObject) -> None:
    rows = [each for batch in batches for each in batch]
    readable = data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows)))
    assert found_in(index_of(batches), readable) == expected(rows, readable)


@given(batches, st.data())
def test_rows_that_are_not_kept_are_gone(batches: list[list[Terms]], data: st.DataObject) -> None:
    rows = [each for batch in batches for each in batch]
    alive = np.array(data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows))), np.bool_)
    kept = [each for each, lives in zip(rows, alive.tolist(), strict=True) if lives]
    compacted = index_of(batches).compacted(alive, np.cumsum(alive, dtype=np.int32) - 1)
    assert found_in(compacted, [True] * len(kept)) == expected(kept, [True] * len(kept))


@given(batches)
def test_each_segment_is_less_than_half_as_long_as_the_one_before(batches: list[list[Terms]]) -> None:
    lengths = [len(segment) for segment in index_of(batches).segments]
    assert all(2 * shorter <= longer for longer, shorter in pairwise(lengths))


def test_a_new_row_leaves_the_index_before_it_as_it_was() -> None:
    first = np.array([(HASHES[0], 0.5, 0)], TERM_TYPE)
    before = WordIndex().with_rows(0, [first])
    before.with_rows(1, [first])
    assert found_in(before, [True])[HASHES[0]] == [(0, 0.5, 0)]
