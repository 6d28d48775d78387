"""The inverted index, compared with a look at the terms of each row."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cstp_grpc.core.decisions.decision_terms import TERM_TYPE, Terms
from cstp_grpc.core.decisions.search import word_index
from cstp_grpc.core.decisions.search.word_index import SHARED, WordIndex
from tests.core.decisions.rows import HASHES, terms

batches = st.lists(st.lists(terms, max_size=5), max_size=8)


ADA, BOB = 1, 2
Found = dict[int, list[tuple[int, float, int]]]


def index_of(batches: Sequence[Sequence[Terms]], readers: Sequence[int] = ()) -> WordIndex:
    """An index of batches of rows, which all are shared unless `readers` says whose they are."""
    index, row = WordIndex(), 0
    for batch in batches:
        of_batch = readers[row : row + len(batch)] or [SHARED] * len(batch)
        index = index.with_rows(row, batch, np.array(of_batch, np.int32))
        row += len(batch)
    return index


def found_in(index: WordIndex, readable: Sequence[bool], reader: int = ADA) -> Found:
    """What the index finds, by hash."""
    found = index.find(HASHES, reader, np.array(readable, np.bool_))
    postings = found.postings
    entries = list(zip(postings.rows.tolist(), postings.impacts.tolist(), postings.fields.tolist(), strict=True))
    ends = list(accumulate(found.counts))
    return {
        HASHES[place]: sorted(entries[end - count : end])
        for place, count, end in zip(found.places, found.counts, ends, strict=True)
    }


def expected(rows: Sequence[Terms], readable: Sequence[bool]) -> Found:
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
def test_it_finds_shared_rows_and_those_of_the_reader(batches: list[list[Terms]], data: st.DataObject) -> None:
    rows = [each for batch in batches for each in batch]
    readers = data.draw(st.lists(st.sampled_from([SHARED, ADA, BOB]), min_size=len(rows), max_size=len(rows)))
    index, everything = index_of(batches, readers), [True] * len(rows)
    for reader in (ADA, BOB, -1):
        assert found_in(index, everything, reader) == expected(rows, [each in (SHARED, reader) for each in readers])


def test_private_rows_of_others_leave_no_word_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(word_index, "MAX_POSTINGS", 3)
    rows = [np.array([(HASHES[0], 0.5, 0)], TERM_TYPE)] * 4
    alone = found_in(index_of([rows[:1]], [ADA]), [True])
    assert alone[HASHES[0]] == [(0, 0.5, 0)]
    assert found_in(index_of([rows], [ADA, BOB, BOB, BOB]), [True, False, False, False]) == alone
    assert HASHES[0] not in found_in(index_of([rows], [ADA, SHARED, SHARED, SHARED]), [True] * 4)


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
    before = index_of([[first]])
    before.with_rows(1, [first], np.array([SHARED], np.int32))
    assert found_in(before, [True])[HASHES[0]] == [(0, 0.5, 0)]
