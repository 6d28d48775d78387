"""The dates at which decisions are to be reviewed, and their reviews, in SQL."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Row, delete, func, insert, or_, select

from cstp_grpc.decisions.model import Decision, DecisionHistory, DecisionReview
from cstp_grpc.decisions.sql_mapping import OUTCOME, OWN, split_into_chunks
from cstp_grpc.decisions.sql_tables import decision_reviews, decisions, review_deadlines
from cstp_grpc.enums import DecisionStatus
from cstp_grpc.storage.database import Database
from cstp_grpc.storage.storable_text import replace_unstorable
from cstp_grpc.storage.unit_of_work import UnitOfWork

REVIEW = (
    decision_reviews.c.reviewer,
    decision_reviews.c.outcome,
    decision_reviews.c.at,
    decision_reviews.c.notes,
    decision_reviews.c.confidence,
)
"""The columns that `review_from_row` unpacks."""


def read_deadlines(unit_of_work: UnitOfWork, ids: Sequence[str]) -> dict[str, datetime]:
    """Return the dates of review of the decisions that have one, by id."""
    columns = review_deadlines.c
    return {
        key: review_by
        for chunk in split_into_chunks(ids)
        for key, review_by in unit_of_work.execute(
            select(columns.decision_id, columns.review_by).where(columns.decision_id.in_(chunk))
        )
    }


def insert_deadlines(unit_of_work: UnitOfWork, found: Iterable[Decision]) -> None:
    """Store the dates of review of decisions that have none stored."""
    rows = [{"decision_id": item.id, "review_by": item.review_by} for item in found if item.review_by is not None]
    if rows:
        unit_of_work.execute(insert(review_deadlines), rows)


def delete_deadlines(unit_of_work: UnitOfWork, ids: Sequence[str]) -> None:
    """Remove the dates of review of decisions."""
    for chunk in split_into_chunks(ids):
        unit_of_work.execute(delete(review_deadlines).where(review_deadlines.c.decision_id.in_(chunk)))


def review_due_condition(at: datetime) -> ColumnElement[bool]:
    """Return the condition that a decision of the agent given as the parameter `caller` is due for review."""
    due = (
        select(review_deadlines.c.decision_id)
        .where(review_deadlines.c.review_by <= at)
        .where(or_(decisions.c.reviewed_date.is_(None), decisions.c.reviewed_date < review_deadlines.c.review_by))
    )
    return OWN & (decisions.c.status != DecisionStatus.SUPERSEDED.value) & decisions.c.id.in_(due)


class SqlHistoryStore:
    """Stores the reviews of decisions in SQLite or PostgreSQL; fulfils `HistoryStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def read_history(self, decision_id: str, limit: int) -> DecisionHistory:
        """Return the latest reviews of a decision, at most `limit`, latest first, and the number of all."""
        of_decision = decision_reviews.c.decision_id == replace_unstorable(decision_id)
        latest = select(*REVIEW).where(of_decision).order_by(decision_reviews.c.id.desc()).limit(limit)
        with self._database.read_snapshot() as unit_of_work:
            reviews = tuple(review_from_row(row) for row in unit_of_work.execute(latest))
            if len(reviews) < limit:
                return DecisionHistory(reviews, len(reviews))
            count = unit_of_work.execute(select(func.count()).where(of_decision)).scalar_one()
        return DecisionHistory(reviews, count)

    def add_review(
        self, unit_of_work: UnitOfWork, decision_id: str, review: DecisionReview, request_key: str | None
    ) -> None:
        """Add the latest review of a decision."""
        values: Mapping[str, object] = {
            "decision_id": decision_id,
            "reviewer": review.reviewer,
            "request_key": request_key,
            "outcome": review.outcome.value,
            "notes": review.notes,
            "at": review.at,
            "confidence": review.confidence,
        }
        unit_of_work.execute(insert(decision_reviews).values(values))

    def find_review(
        self, unit_of_work: UnitOfWork, decision_id: str, reviewer: str, request_key: str
    ) -> DecisionReview | None:
        """Return the review of a decision that an agent made under a key; None if there is none."""
        columns = decision_reviews.c
        query = select(*REVIEW).where(
            columns.decision_id == decision_id, columns.reviewer == reviewer, columns.request_key == request_key
        )
        row = unit_of_work.execute(query).one_or_none()
        return None if row is None else review_from_row(row)


def review_from_row(row: Row[*tuple[Any, ...]]) -> DecisionReview:
    """Convert a row of REVIEW to a review."""
    reviewer, outcome, at, notes, confidence = row
    known = OUTCOME[outcome]
    assert known is not None, "the column is never NULL"
    return DecisionReview(reviewer, known, at, notes, confidence)
