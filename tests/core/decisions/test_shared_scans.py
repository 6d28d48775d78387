"""Queries that are expected together are scanned for once, with the estimates that each has alone."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from cstp_grpc.core.decisions.search.row_vectors import (
    CodeScanner,
    LocalVectors,
    QuantizedVectors,
    Scores,
    SharedScans,
)
from cstp_grpc.core.decisions.store import Vector
from tests.core.decisions.rows import unit

SIZE = 40


class CountedVectors(LocalVectors):
    """Counts the queries of each scan."""

    scans: list[int]

    def estimates(self, size: int, queries: QuantizedVectors, scanner: CodeScanner) -> Scores:
        self.scans.append(len(queries.codes))
        return super().estimates(size, queries, scanner)


@pytest.fixture
def vectors() -> CountedVectors:
    generator = np.random.default_rng(3)
    vectors = CountedVectors.empty(SIZE, 3)
    assert isinstance(vectors, CountedVectors)
    vectors.scans = []
    for place in range(SIZE):
        vectors.write(place, unit(*generator.standard_normal(3)))
    return vectors


QUERIES = [unit(1, 0, 0), unit(1, 2, 3), unit(0, -1, 1)]


def estimate(scans: SharedScans, vectors: CountedVectors, query: Vector, size: int = SIZE) -> tuple[list[float], float]:
    estimates, bound = scans.estimates(vectors, size, query)
    return estimates.tolist(), bound


def test_one_scan_is_for_all_that_are_expected(vectors: CountedVectors) -> None:
    scans = SharedScans(CodeScanner())
    alone = [estimate(scans, vectors, query) for query in QUERIES]
    vectors.scans.clear()

    with scans.expect([*QUERIES, QUERIES[0]]), ThreadPoolExecutor(3) as threads:
        together = list(threads.map(lambda query: estimate(scans, vectors, query), QUERIES))

    assert together == alone
    assert vectors.scans == [3]


def test_a_query_that_nobody_expects_is_scanned_for_alone(vectors: CountedVectors) -> None:
    scans = SharedScans(CodeScanner())
    with scans.expect(QUERIES[:2]):
        estimate(scans, vectors, QUERIES[2])
    estimate(scans, vectors, QUERIES[0])
    assert vectors.scans == [1, 1]


def test_rows_that_came_later_are_scanned_again(vectors: CountedVectors) -> None:
    scans = SharedScans(CodeScanner())
    with scans.expect(QUERIES):
        few, _ = estimate(scans, vectors, QUERIES[0], SIZE - 10)
        all_rows, _ = estimate(scans, vectors, QUERIES[0])
        again, _ = estimate(scans, vectors, QUERIES[0], SIZE - 10)
    assert few == again == all_rows[: SIZE - 10]
    assert vectors.scans == [3, 3]


def test_a_query_that_is_expected_twice_stays_in_the_first_batch(vectors: CountedVectors) -> None:
    scans = SharedScans(CodeScanner())
    with scans.expect(QUERIES):
        with scans.expect(QUERIES[:1]):
            estimate(scans, vectors, QUERIES[0])
        estimate(scans, vectors, QUERIES[1])
        estimate(scans, vectors, QUERIES[0])
    estimate(scans, vectors, QUERIES[0])
    assert vectors.scans == [3, 1]
