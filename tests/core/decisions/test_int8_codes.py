"""Estimates of scores from int8 codes, and what is selected by them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from cstp_grpc.core.decisions.search.ranking import nth_best_bound, select_best
from cstp_grpc.core.decisions.search.row_vectors import Int8Codes, QuantizedVectors
from cstp_grpc.core.decisions.store import Vector
from tests.core.decisions.rows import unit

DIMENSIONS = 5
numbers = st.floats(-1.0, 1.0, width=32)
some_vectors = arrays.arrays(np.float32, DIMENSIONS, elements=numbers)
many_scores = arrays.arrays(np.float32, st.integers(1, 400), elements=numbers)


def at_once(count: int, work: Callable[[int, int], None]) -> None:
    work(0, count)


def in_three_parts(count: int, work: Callable[[int, int], None]) -> None:
    for part in range(3):
        work(part * count // 3, (part + 1) * count // 3)


def codes_of(vectors: list[Vector]) -> Int8Codes:
    codes = Int8Codes.empty(len(vectors), DIMENSIONS)
    codes.write(0, np.array(vectors))
    return codes


def rounded(*queries: Vector) -> QuantizedVectors:
    return QuantizedVectors.of(np.array(queries))


@given(st.lists(some_vectors, min_size=1, max_size=8), st.lists(some_vectors, min_size=1, max_size=3))
def test_an_estimate_is_off_by_at_most_the_bound(vectors: list[Vector], queries: list[Vector]) -> None:
    codes = codes_of(vectors)

    estimates = codes.estimates(len(vectors), rounded(*queries), at_once)

    exact = np.array(queries, np.float64) @ np.array(vectors, np.float64).T
    bounds = codes.error_bounds(rounded(*queries))
    assert (np.abs(estimates - exact) <= bounds[:, np.newaxis]).all()


def test_the_bound_is_narrow_for_embeddings() -> None:
    generator = np.random.default_rng(5)
    codes = Int8Codes.empty(100, 384)
    codes.write(0, np.array([unit(*generator.standard_normal(384)) for _ in range(100)]))

    assert codes.error_bounds(rounded(unit(*generator.standard_normal(384)))) < 0.03


@given(st.lists(some_vectors, min_size=1, max_size=12), some_vectors)
def test_parts_and_copies_have_the_same_estimates(vectors: list[Vector], query: Vector) -> None:
    codes = codes_of(vectors)
    whole = codes.estimates(len(vectors), rounded(query), at_once)
    kept = np.arange(0, len(vectors), 2)

    copy = codes.copy(kept, 20)

    assert (codes.estimates(len(vectors), rounded(query, query), in_three_parts) == whole).all()
    assert (copy.estimates(len(kept), rounded(query), at_once) == whole[:, kept]).all()
    assert (copy.error_bounds(rounded(query)) == codes.error_bounds(rounded(query))).all()


@given(many_scores, st.integers(1, 20), st.floats(-1.0, 1.0), st.floats(0.0, 0.5), st.randoms(use_true_random=False))
def test_no_row_that_may_be_among_the_best_is_left_out(  # type: ignore[no-untyped-def]
    scores, limit: int, least: float, error: float, random
) -> None:
    estimates = np.array([score + random.uniform(-error, error) for score in scores.tolist()], np.float32)

    selected = set(select_best(estimates, limit, least, error + 1e-6).tolist())

    ranked = sorted(range(len(scores)), key=lambda place: -scores[place])
    worst = scores[ranked[:limit][-1]]
    assert {place for place in ranked if scores[place] >= max(worst, least)} <= selected


@given(many_scores, st.integers(1, 20))
def test_enough_scores_reach_the_bound(scores, n: int) -> None:  # type: ignore[no-untyped-def]
    if len(scores) > n:
        assert (scores >= nth_best_bound(scores, n)).sum() >= n


@pytest.mark.parametrize("limit", [1, 10])
def test_few_of_many_are_selected(limit: int) -> None:
    estimates = np.random.default_rng(1).permutation(np.linspace(-1, 1, 20_000, dtype=np.float32))
    assert limit <= len(select_best(estimates, limit, -1.0, 0.001)) <= limit + 100
