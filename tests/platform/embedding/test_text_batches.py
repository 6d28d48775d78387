"""Batches of texts, and the threads that work on them."""

from __future__ import annotations

import itertools
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cstp_grpc.platform.embedding.embedder import BATCH_TOKENS, BatchThreads, batch_by_length
from tests.waiting import SECONDS


@given(st.lists(st.integers(1, 600), max_size=200))
def test_batches_hold_every_text_once_within_the_bounds(lengths: list[int]) -> None:
    made = list(batch_by_length(lengths))
    assert sorted(index for batch in made for index in batch) == list(range(len(lengths)))
    for batch in made:
        assert len(batch) == 1 or len(batch) * max(lengths[index] for index in batch) <= BATCH_TOKENS


@given(st.lists(st.integers(1, 600), max_size=200))
def test_a_batch_is_filled_before_the_next_begins(lengths: list[int]) -> None:
    made = list(batch_by_length(lengths))
    for batch, following in itertools.pairwise(made):
        longest = max(lengths[index] for index in batch)
        assert (len(batch) + 1) * longest > BATCH_TOKENS
        assert min(lengths[index] for index in batch) >= max(lengths[index] for index in following)


def test_batches_are_worked_on_at_the_same_time() -> None:
    # Neither passes the barrier before both have come.
    together, done = threading.Barrier(2), list[int]()

    def work(batch: list[int]) -> None:
        together.wait(SECONDS)
        done.extend(batch)

    BatchThreads(2).run(work, [[0], [1]])
    assert sorted(done) == [0, 1]


@pytest.mark.parametrize("threads", [1, 2])
def test_an_error_of_a_batch_is_raised(threads: int) -> None:
    def work(batch: list[int]) -> None:
        if batch == [1]:
            raise KeyError(1)

    with pytest.raises(KeyError):
        BatchThreads(threads).run(work, [[0], [1], [2]])
