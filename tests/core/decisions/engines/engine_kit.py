"""A journal that is searched by an engine, and in memory for comparison."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from cstp_grpc.core.decisions.model import DecisionFilter, Match
from cstp_grpc.core.decisions.read_policy import SHARE_WITH_ALL, ReadPolicy
from cstp_grpc.core.decisions.search.decision_search import DecisionSearch
from cstp_grpc.core.decisions.search.matrix_sync import MatrixSync
from cstp_grpc.core.decisions.search.row_source import MatrixSource
from cstp_grpc.core.decisions.search.search_engine import EngineFeeder, EngineSource, SearchEngine
from cstp_grpc.core.decisions.search.vector_matrix import VectorMatrix
from tests.core.decisions.journals import JournalKit

ANY = DecisionFilter()
ALL = 1000


class OpenEngine(Protocol):
    """Opens an engine for a journal and a model."""

    def __call__(self, journal: str, model: str, dimensions: int, sharing: ReadPolicy = ...) -> SearchEngine:
        """Open it."""


class EngineKit:
    """A journal with an engine, and what feeds it."""

    def __init__(self, kit: JournalKit, open_engine: OpenEngine, sharing: ReadPolicy = SHARE_WITH_ALL) -> None:
        self.kit = kit
        self.sharing = sharing
        model, dimensions = kit.embedder.model, kit.embedder.dimensions
        self.engine = open_engine(kit.store.identity(), model, dimensions, sharing)
        self.feeder = EngineFeeder(self.engine, kit.store, model)
        self.source = EngineSource(self.engine, kit.store, model, dimensions, sharing)
        self.search = DecisionSearch(kit.store, self.source, kit.embedder)

    def find(
        self,
        query: str,
        filters: DecisionFilter = ANY,
        caller: str = "bob",
        limit: int = 10,
        min_score: float = 0.0,
        **options: Any,
    ) -> list[Match]:
        return self.search.find_precedents(query, (filters,), caller, limit, min_score, of_series=ALL, **options)

    def find_in_memory(self, query: str, filters: DecisionFilter, caller: str, limit: int) -> list[Match]:
        matrix = VectorMatrix(self.kit.embedder.dimensions, self.sharing)
        MatrixSync(self.kit.store, self.kit.embedder.model, matrix).refresh()
        search = DecisionSearch(self.kit.store, MatrixSource(matrix), self.kit.embedder)
        return search.find_precedents(query, (filters,), caller, limit, 0.0, of_series=ALL)


def titles(matches: Sequence[Match]) -> list[str]:
    return [match.decision.title for match in matches]
