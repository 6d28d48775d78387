"""The dates at which decisions are to be reviewed, in SQL."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from sqlalchemy import ColumnElement, delete, insert, or_, select

from cstp_grpc.decisions.model import Decision
from cstp_grpc.decisions.sql_mapping import OWN, split_into_chunks
from cstp_grpc.decisions.sql_tables import decisions, review_deadlines
from cstp_grpc.enums import DecisionStatus
from cstp_grpc.storage.unit_of_work import UnitOfWork


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
