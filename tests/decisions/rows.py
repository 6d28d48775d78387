"""Rows of the matrix, and what a search over them must answer, computed the slow way."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import numpy as np
from hypothesis import strategies as st

from cstp_grpc.decisions.model import Decision, DecisionFilter, passes_filter
from cstp_grpc.decisions.read_policy import ReadPolicy
from cstp_grpc.decisions.search.vector_matrix import ScoredDecision
from cstp_grpc.decisions.store import IndexRow, Vector
from cstp_grpc.enums import DecisionStatus, Outcome, Stakes, Visibility
from tests.decisions import strategies

AGENTS = ("alice", "bob")
IDS = tuple(f"dec-{number}" for number in range(5))
DIRECTIONS = ((1, 0, 0), (1, 1, 0), (1, 1, 1), (0, 1, 0), (-1, 0, 0), (1, 0.25, 0))
"""Few directions, so that scores are often equal."""


def unit(*numbers: float) -> Vector:
    """A vector of length 1."""
    vector = np.array(numbers, np.float32)
    return vector / np.linalg.norm(vector)


vectors = st.sampled_from(DIRECTIONS).map(lambda numbers: unit(*numbers))


def row(decision_id: str, revision: int, vector: Vector | None = None, **changes: object) -> IndexRow:
    """A row of alice's, shared, with little else."""
    values: dict[str, object] = {
        "agent": "alice",
        "visibility": Visibility.SHARED,
        "category": None,
        "confidence": None,
        "date": strategies.EPOCH.timestamp(),
        "stakes": None,
        "status": DecisionStatus.DECIDED,
        "outcome": None,
        "tags": (),
        "project": None,
        **changes,
    }
    return IndexRow(decision_id, revision, unit(1, 0, 0) if vector is None else vector, **values)  # type: ignore[arg-type]


rows = st.builds(
    IndexRow,
    decision_id=st.sampled_from(IDS),
    revision=st.integers(0, 3),
    vector=vectors,
    agent=st.sampled_from(AGENTS),
    visibility=st.sampled_from(Visibility),
    category=st.none() | strategies.categories,
    confidence=st.none() | strategies.fractions,
    date=strategies.dates.map(datetime.timestamp),
    stakes=st.none() | st.sampled_from(Stakes),
    status=st.sampled_from(DecisionStatus),
    outcome=st.none() | st.sampled_from(Outcome),
    tags=strategies.tags,
    project=st.none() | strategies.projects,
)
filters = strategies.filters(st.sampled_from(AGENTS))


@dataclass
class SlowMatrix:
    """What the matrix must do, a decision at a time."""

    rows: dict[str, IndexRow]

    @classmethod
    def of(cls, rows: Iterable[IndexRow]) -> SlowMatrix:
        newest: dict[str, IndexRow] = {}
        for item in rows:
            if item.decision_id not in newest or item.revision > newest[item.decision_id].revision:
                newest[item.decision_id] = item
        return cls(newest)

    def passing(self, caller: str, wanted: DecisionFilter, sharing: ReadPolicy) -> list[IndexRow]:
        found = ((item, decision(item)) for item in self.rows.values())
        return [item for item, meant in found if sharing.may_read(meant, caller) and passes_filter(meant, wanted)]

    def best(self, found: Iterable[IndexRow], query: Vector, limit: int, min_score: float) -> list[ScoredDecision]:
        scored = []
        for item in found:
            product = sum(float(a) * float(b) for a, b in zip(item.vector, query, strict=True))
            scored.append(ScoredDecision(item.decision_id, max(-1.0, min(1.0, round(product, 6))), item.date))
        scored.sort(key=lambda one: (-one.score, -one.date, one.decision_id))
        return [one for one in scored if one.score >= min_score][:limit]


def decision(item: IndexRow) -> Decision:
    """The decision that a row stands for."""
    return Decision(
        id=item.decision_id,
        title="any",
        status=item.status,
        date=datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=item.date),
        agent=item.agent,
        visibility=item.visibility,
        category=item.category,
        stakes=item.stakes,
        confidence=item.confidence,
        outcome=item.outcome,
        tags=item.tags,
        project=item.project,
    )
