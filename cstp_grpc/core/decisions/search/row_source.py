"""Where searches get the rows that they rank: from memory, or from an engine outside of the servers."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from cstp_grpc.core.decisions.model import DecisionFilter
from cstp_grpc.core.decisions.search.matrix_sync import MatrixLoader
from cstp_grpc.core.decisions.search.ranking import CandidateRows
from cstp_grpc.core.decisions.search.relevance import RankedQuery
from cstp_grpc.core.decisions.search.vector_matrix import VectorMatrix
from cstp_grpc.core.decisions.store import Vector, Vectors


class OpenRows(Protocol):
    """The rows of one search, for one thread."""

    def candidates(self, filters: DecisionFilter, count: int, *, exemplary: bool) -> CandidateRows:
        """Return rows that pass a filter, among them nearly all of the `count` most relevant ones.

        If `exemplary`, the most relevant failures and lessons are among them, too. Raises QueryFailed.
        """

    def candidates_of(self, ids: Sequence[str]) -> CandidateRows:
        """Return those of some decisions that the caller may read. Raises QueryFailed."""

    def first_vectors(self, ids: Sequence[str]) -> Vectors:
        """Return the vector of the first passage of each decision; zeros for one that is not there."""


class RowSource(Protocol):
    """Gives searches their rows. Safe for many threads."""

    @property
    def is_loaded(self) -> bool:
        """Whether `load` has nothing to do."""

    @property
    def version(self) -> int:
        """The number of changes, apart from those that the state of the journal counts."""

    @property
    def scanned_rows(self) -> int | None:
        """How many rows a search reads in memory; None if it asks an engine."""

    def load(self) -> None:
        """Prepare for searches, at first perhaps for long. Raises QueryFailed and Unavailable."""

    def expect_queries(self, queries: Sequence[Vector]) -> AbstractContextManager[None]:
        """Serve all of the queries when one of them is opened, until the end of the block."""

    def open(self, query: RankedQuery, caller: str) -> OpenRows:
        """Return the rows for a query of a caller. Raises QueryFailed."""


class MatrixSource:
    """All decisions in the memory of this server."""

    def __init__(self, matrix: VectorMatrix, loader: MatrixLoader | None = None) -> None:
        """Use a matrix, which `loader` fills before each search; None if that is done elsewhere."""
        self._matrix = matrix
        self._loader = loader

    @property
    def is_loaded(self) -> bool:
        return self._loader is None or self._loader.is_current

    @property
    def version(self) -> int:
        return self._matrix.version

    @property
    def scanned_rows(self) -> int | None:
        return self._matrix.size

    def load(self) -> None:
        if self._loader is not None:
            self._loader.load()

    def expect_queries(self, queries: Sequence[Vector]) -> AbstractContextManager[None]:
        return self._matrix.expect_queries(queries)

    def open(self, query: RankedQuery, caller: str) -> OpenRows:  # noqa: ARG002 - any query finds all rows
        return MatrixRows(self._matrix, caller)


class MatrixRows:
    """All decisions in memory that a caller may read, by the data of the moment when each filter is asked for first."""

    def __init__(self, matrix: VectorMatrix, caller: str) -> None:
        self._matrix = matrix
        self._caller = caller
        self._found: dict[DecisionFilter, CandidateRows] = {}

    def candidates(self, filters: DecisionFilter, count: int, *, exemplary: bool) -> CandidateRows:  # noqa: ARG002
        if filters not in self._found:
            self._found[filters] = self._matrix.candidates(self._caller, filters)
        return self._found[filters]

    def candidates_of(self, ids: Sequence[str]) -> CandidateRows:
        return self._matrix.candidates_of(ids, self._caller)

    def first_vectors(self, ids: Sequence[str]) -> Vectors:
        return self._matrix.first_vectors(ids)
