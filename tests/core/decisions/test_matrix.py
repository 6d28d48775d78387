"""Exact search over the mirror in memory."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cstp_grpc.contract.enums import Visibility
from cstp_grpc.core.decisions.model import DecisionFilter
from cstp_grpc.core.decisions.read_policy import SHARE_WITH_ALL, ReadPolicy
from cstp_grpc.core.decisions.search.array_file import open_array_file, write_array_file
from cstp_grpc.core.decisions.search.matrix_file import describe_snapshot, read_snapshot
from cstp_grpc.core.decisions.search.matrix_snapshot import StringInterner
from cstp_grpc.core.decisions.search.ranking import MIN_ROWS_TO_ESTIMATE, CandidateRows, ScoredDecision
from cstp_grpc.core.decisions.search.row_vectors import SharedVectorPool
from cstp_grpc.core.decisions.search.vector_matrix import VectorMatrix
from cstp_grpc.core.decisions.store import ErasedRow, IndexRow, Vector
from cstp_grpc.server.interceptors.rate_limits import create_shared_memory
from tests.core.decisions.rows import (
    AGENTS,
    DIRECTIONS,
    IDS,
    SlowMatrix,
    filters,
    queries,
    query_of,
    row,
    rows,
    shown,
    unit,
)
from tests.core.decisions.strategies import sharings

EVERYTHING = DecisionFilter()
X = unit(1, 0, 0)


MEMORY: int | None = None
"""The descriptor of the memory that matrices have their vectors in; None if each has its own."""


FILE: Path | None = None
"""The file from which matrices continue after half of their batches; None if they do not."""


@pytest.fixture(params=["own", "shared", "file"], scope="module", autouse=True)
def memory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Run each test with vectors of a process alone, with those that processes share, and with a mapped file."""
    global FILE, MEMORY
    if request.param == "own":
        yield
    elif request.param == "file":
        FILE = tmp_path_factory.mktemp("matrix") / "matrix"
        yield
        FILE = None
    else:
        MEMORY = create_shared_memory()
        yield
        os.close(MEMORY)
        MEMORY = None


def matrix_of(*batches: Sequence[IndexRow], sharing: ReadPolicy = SHARE_WITH_ALL) -> VectorMatrix:
    matrix = VectorMatrix(3, sharing, None if MEMORY is None else SharedVectorPool(MEMORY, 3))
    for number, batch in enumerate(batches):
        if FILE is not None and number == len(batches) // 2:
            continue_from_file(FILE, matrix)
        matrix.apply(batch)
    return matrix


def continue_from_file(path: Path, matrix: VectorMatrix) -> None:
    write_array_file(path, *describe_snapshot(*matrix.published()))
    content, arrays = open_array_file(path)
    path.unlink()
    matrix.adopt(read_snapshot(content, arrays), StringInterner(content["texts"]))


def ids(candidates: CandidateRows) -> list[str]:
    return [item.decision_id for item in candidates.best(query_of(X), 10_000, -1.0)]


callers = st.sampled_from([*AGENTS, "carol"])
limits = st.integers(1, 10)
min_scores = st.sampled_from([-1.0, 0.0, 0.3, 1.0])


@given(st.lists(st.lists(rows, max_size=8), max_size=6), filters, callers, sharings("bob"), queries, limits, min_scores)
def test_it_finds_what_a_look_at_each_decision_finds(  # type: ignore[no-untyped-def]
    batches, wanted, caller, sharing, query, limit, min_score
) -> None:
    matrix = matrix_of(*batches, sharing=sharing)
    slow = SlowMatrix.of(item for batch in batches for item in batch)
    passing = slow.passing(caller, wanted, sharing)

    candidates = matrix.candidates(caller, wanted)

    assert matrix.size == len(slow.rows)
    assert len(candidates) == len(passing)
    readable = slow.passing(caller, EVERYTHING, sharing)
    assert shown(candidates.best(query, limit, min_score)) == slow.best(passing, query, limit, min_score, readable)


def test_few_of_many_rows_score_as_they_do_among_all() -> None:
    generator = np.random.default_rng(7)
    many = [
        row(
            f"dec-{number}", number, unit(*generator.standard_normal(3)), project="rare" if number % 9 == 0 else "often"
        )
        for number in range(4000)
    ]
    matrix = matrix_of(many)
    query = query_of(unit(1, 2, 3))
    scores = {item.decision_id: item.score for item in matrix.candidates("bob", EVERYTHING).best(query, 4000, -1.0)}

    for project in ("rare", "often"):
        found = matrix.candidates("bob", DecisionFilter(project=project)).best(query, 4000, -1.0)
        assert {item.decision_id for item in found} == {item.decision_id for item in many if item.project == project}
        assert all(item.score == scores[item.decision_id] for item in found)


def test_scores_stay_within_their_range() -> None:
    third = np.full(3, np.sqrt(np.float32(1 / 3)) * np.float32(1.000001), np.float32)
    matrix = matrix_of([row("dec-0", 0, third), row("dec-1", 1, -third)])
    results = matrix.candidates("bob", EVERYTHING).best(query_of(third), 2, -1.0)
    assert [item.similarity for item in results] == [1.0, -1.0]
    assert all(0 <= item.score <= 1 for item in results)


@given(st.lists(rows | st.builds(ErasedRow, st.sampled_from(IDS), st.integers(0, 3)), max_size=20), filters, callers)
def test_what_is_deleted_is_not_found_whatever_comes_late(  # type: ignore[no-untyped-def]
    changes, wanted, caller
) -> None:
    matrix = matrix_of()
    erased: dict[str, int] = {}
    kept: list[IndexRow] = []
    for change in changes:
        if isinstance(change, ErasedRow):
            matrix.forget([change])
            known = SlowMatrix.of(kept).rows.get(change.decision_id)
            if known is None or known.revision < change.revision:
                erased[change.decision_id] = max(change.revision, erased.get(change.decision_id, -1))
                kept = [item for item in kept if item.decision_id != change.decision_id]
        else:
            matrix.apply([change])
            if change.revision > erased.get(change.decision_id, -1):
                kept.append(change)
    slow = SlowMatrix.of(kept)
    passing = slow.passing(caller, wanted, SHARE_WITH_ALL)
    assert matrix.size == len(slow.rows)
    found = matrix.candidates(caller, wanted).best(query_of(X), 10, -1.0)
    assert shown(found) == slow.best(passing, query_of(X), 10, -1.0)


def test_deleted_rows_are_compacted_away() -> None:
    matrix = matrix_of([row(f"dec-{number}", number) for number in range(600)])
    matrix.forget([ErasedRow(f"dec-{number}", 1000 + number) for number in range(599)])
    assert (matrix.size, ids(matrix.candidates("bob", EVERYTHING))) == (1, ["dec-599"])
    matrix.apply([row("dec-0", 2000)])
    assert ids(matrix.candidates("bob", EVERYTHING)) == ["dec-0", "dec-599"]


def test_an_older_revision_changes_nothing() -> None:
    matrix = matrix_of([row("dec-0", 7, category="new")])
    for revision in (6, 7):
        matrix.apply([row("dec-0", revision, category="old")])
    assert len(matrix.candidates("bob", DecisionFilter(category="new"))) == 1
    assert len(matrix.candidates("bob", DecisionFilter(category="old"))) == 0


def test_what_was_found_before_a_change_is_not_found_again() -> None:
    matrix = matrix_of([row("dec-0", 0, agent="alice", visibility=Visibility.SHARED)])
    for revision in range(1, 6):
        assert ids(matrix.candidates("bob", EVERYTHING)) == ["dec-0"]
        matrix.apply([row("dec-0", 2 * revision, visibility=Visibility.PRIVATE)])
        assert ids(matrix.candidates("bob", EVERYTHING)) == []
        assert ids(matrix.candidates("alice", EVERYTHING)) == ["dec-0"]
        matrix.apply([row("dec-0", 2 * revision + 1)])


def test_many_changes_of_few_decisions_leave_each_once_and_old_readers_undisturbed() -> None:
    matrix = matrix_of([row(f"dec-{number}", number, tags=(f"tag-{number}", "first")) for number in range(10)])
    before = matrix.candidates("bob", DecisionFilter(tags=("first",)))
    for revision in range(10, 2000):
        number = revision % 10
        matrix.apply([row(f"dec-{number}", revision, tags=(f"tag-{number}", "later"), category=f"c{revision % 3}")])

    assert matrix.size == 10
    assert sorted(ids(matrix.candidates("bob", EVERYTHING))) == [f"dec-{number}" for number in range(10)]
    assert ids(matrix.candidates("bob", DecisionFilter(tags=("later", "tag-4")))) == ["dec-4"]
    assert ids(matrix.candidates("bob", DecisionFilter(tags=("first",)))) == []
    assert sorted(ids(before)) == [f"dec-{number}" for number in range(10)]


def test_a_vector_of_another_length_is_refused_without_losing_those_before() -> None:
    matrix = matrix_of()
    with pytest.raises(ValueError, match="shape"):
        matrix.apply([row("dec-0", 0), row("dec-1", 1, np.ones(4, np.float32)), row("dec-2", 2)])
    matrix.apply([row("dec-3", 3)])
    assert ids(matrix.candidates("bob", EVERYTHING)) == ["dec-0", "dec-3"]


def test_readers_see_each_decision_once_while_others_write() -> None:
    names = [f"dec-{number}" for number in range(50)]
    matrix = matrix_of([row(name, number) for number, name in enumerate(names)])
    errors: list[str] = []
    ended = threading.Event()

    def read() -> None:
        while not ended.is_set():
            found = matrix.candidates("bob", EVERYTHING)
            if sorted(ids(found)) != sorted(names):
                errors.append(f"{len(found)} of {len(names)}")

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for revision in range(50, 3000):
        matrix.apply([row(names[revision % 50], revision, category=f"c{revision}")])
    ended.set()
    for reader in readers:
        reader.join()
    assert not errors


def test_many_searches_at_once_score_alike() -> None:
    generator = np.random.default_rng(11)
    matrix = matrix_of([row(f"dec-{number}", number, unit(*generator.standard_normal(3))) for number in range(7000)])
    queries = [unit(*generator.standard_normal(3)) for _ in range(40)]

    def search(query: Vector) -> list[ScoredDecision]:
        return matrix.candidates("bob", EVERYTHING).best(query_of(query), 20, -1.0)

    alone = [search(query) for query in queries]
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(search, queries)) == alone


@pytest.mark.parametrize("limit", [10, *(pytest.param(other, marks=pytest.mark.slow) for other in (1, 500))])
def test_many_rows_are_ranked_as_a_look_at_each_ranks_them(limit: int) -> None:
    generator = np.random.default_rng(limit)
    # Few directions with little noise: many rows score almost the same, and codes alone would confuse them.
    many = [
        row(
            f"dec-{number}",
            number,
            unit(*(np.array(DIRECTIONS[number % len(DIRECTIONS)]) + generator.normal(0, 0.01, 3))),
            category="rare" if number % 7 == 0 else "often",
        )
        for number in range(MIN_ROWS_TO_ESTIMATE + 2000)
    ]
    matrix, slow = matrix_of(many), SlowMatrix.of(many)

    for wanted in (EVERYTHING, DecisionFilter(category="often"), DecisionFilter(category="rare")):
        for query, least in ((query_of(unit(1, 2, 3)), -1.0), (query_of(unit(1, 0, 0.1)), 0.8)):
            passing = slow.passing("bob", wanted, SHARE_WITH_ALL)
            found = matrix.candidates("bob", wanted).best(query, limit, least)
            assert shown(found) == slow.best(passing, query, limit, least)
