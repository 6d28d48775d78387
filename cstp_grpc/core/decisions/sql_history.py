"""The reviews and former contents of decisions, and the ids of deleted ones, in SQL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from sqlalchemy import Integer, Row, bindparam, delete, func, insert, select

from cstp_grpc.common.unicode_text import replace_unstorable
from cstp_grpc.contract.enums import DecisionStatus, Outcome, Stakes, Visibility
from cstp_grpc.core.decisions import model
from cstp_grpc.core.decisions.sql_mapping import split_into_chunks
from cstp_grpc.core.decisions.sql_tables import decision_reviews, deleted_decisions, former_contents
from cstp_grpc.platform.storage.database import Database
from cstp_grpc.platform.storage.row_mapper import RowMapper
from cstp_grpc.platform.storage.unit_of_work import UnitOfWork

REVIEW = RowMapper(model.DecisionReview, decision_reviews)
DELETED = RowMapper(model.DeletedDecision, deleted_decisions)

FORMER = (
    select(former_contents.c.revision, former_contents.c.content, former_contents.c.replaced_at)
    .where(former_contents.c.decision_id == bindparam("key"))
    .order_by(former_contents.c.revision.desc())
    .limit(bindparam("limit", type_=Integer))
)

DATES: Final = frozenset({"date", "review_by"})
WORDS: Final[Mapping[str, type[StrEnum]]] = {
    "stakes": Stakes,
    "status": DecisionStatus,
    "outcome": Outcome,
    "visibility": Visibility,
}
"""The fields of a content that are not plain values in JSON."""


class SqlHistoryStore:
    """Stores the reviews and former contents of decisions, and which were deleted, in SQLite or PostgreSQL.

    Reads open their own snapshot and raise QueryFailed if the database does not respond. Writes, and the reads they
    depend on, belong to the transaction of the given unit of work.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def read_history(self, decision_id: str, max_reviews: int, max_former: int) -> model.DecisionHistory:
        """Return the history of a decision with its latest reviews and former contents, latest first."""
        key = replace_unstorable(decision_id)
        of_decision = decision_reviews.c.decision_id == key
        latest = select(decision_reviews).where(of_decision).order_by(decision_reviews.c.id.desc()).limit(max_reviews)
        with self._database.read_snapshot() as unit_of_work:
            reviews = tuple(REVIEW.from_row(row) for row in unit_of_work.execute(latest).mappings())
            count = len(reviews)
            # Counted only if there may be more than were read.
            if count == max_reviews:
                count = unit_of_work.execute(select(func.count()).where(of_decision)).scalar_one()
            rows = unit_of_work.execute(FORMER, {"key": key, "limit": max_former})
            former = tuple(former_from_row(row) for row in rows)
            revision = self.read_revision(unit_of_work, key)
        return model.DecisionHistory(reviews, count, revision, former)

    def add_former(
        self, unit_of_work: UnitOfWork, decision_id: str, content: model.DecisionContent, at: datetime
    ) -> None:
        values: Mapping[str, object] = {
            "decision_id": decision_id,
            # Read in the transaction that holds the one order of writes, so that no two changes take the same number.
            "revision": self.read_revision(unit_of_work, decision_id),
            "replaced_at": at,
            "content": content_to_json(content),
        }
        unit_of_work.execute(insert(former_contents).values(values))

    def read_revision(self, unit_of_work: UnitOfWork, decision_id: str) -> int:
        newest = func.coalesce(func.max(former_contents.c.revision), 0)
        query = select(newest + 1).where(former_contents.c.decision_id == decision_id)
        revision: int = unit_of_work.execute(query).scalar_one()
        return revision

    def erase(self, unit_of_work: UnitOfWork, decision_id: str) -> None:
        for table in (decision_reviews, former_contents):
            unit_of_work.execute(delete(table).where(table.c.decision_id == decision_id))

    def add_deleted(self, unit_of_work: UnitOfWork, deleted: model.DeletedDecision, revision: int) -> None:
        unit_of_work.execute(insert(deleted_decisions).values({**DELETED.to_row(deleted), "revision": revision}))

    def find_deleted(self, unit_of_work: UnitOfWork, ids: Sequence[str]) -> dict[str, model.DeletedDecision]:
        columns = deleted_decisions.c
        query = select(deleted_decisions)
        return {
            row["id"]: DELETED.from_row(row)
            for chunk in split_into_chunks([replace_unstorable(key) for key in ids])
            for row in unit_of_work.execute(query.where(columns.id.in_(chunk))).mappings()
        }

    def page_deleted(self, agent: str, after: str, limit: int) -> list[model.DeletedDecision]:
        """Return deleted decisions of an agent by rising id, from the one after an id."""
        columns = deleted_decisions.c
        query = select(deleted_decisions).where(columns.agent == agent, columns.id > after)
        with self._database.read_snapshot() as unit_of_work:
            rows = unit_of_work.execute(query.order_by(columns.id).limit(limit)).mappings()
            return [DELETED.from_row(row) for row in rows]

    def was_deleted(self, unit_of_work: UnitOfWork, agent: str, idempotency_key: str) -> bool:
        columns = deleted_decisions.c
        query = select(columns.id).where(columns.agent == agent, columns.idempotency_key == idempotency_key)
        return unit_of_work.execute(query.limit(1)).first() is not None

    def remove_deleted(self, unit_of_work: UnitOfWork, ids: Sequence[str]) -> None:
        for chunk in split_into_chunks(ids):
            unit_of_work.execute(delete(deleted_decisions).where(deleted_decisions.c.id.in_(chunk)))

    def add_review(
        self, unit_of_work: UnitOfWork, decision_id: str, review: model.DecisionReview, request_key: str | None
    ) -> None:
        values = {**REVIEW.to_row(review), "decision_id": decision_id, "request_key": request_key}
        unit_of_work.execute(insert(decision_reviews).values(values))

    def add_missing_reviews(
        self, unit_of_work: UnitOfWork, decision_id: str, reviews: Sequence[model.DecisionReview]
    ) -> None:
        """Add the reviews that a decision does not have yet, the earliest first."""
        query = select(decision_reviews).where(decision_reviews.c.decision_id == decision_id)
        known = {REVIEW.from_row(row) for row in unit_of_work.execute(query).mappings()}
        for review in sorted(set(reviews) - known, key=lambda item: item.at):
            self.add_review(unit_of_work, decision_id, review, None)

    def find_review(
        self, unit_of_work: UnitOfWork, decision_id: str, reviewer: str, request_key: str
    ) -> model.DecisionReview | None:
        """Return the review of a decision that an agent made under a key, or None."""
        columns = decision_reviews.c
        query = select(decision_reviews).where(
            columns.decision_id == decision_id, columns.reviewer == reviewer, columns.request_key == request_key
        )
        row = unit_of_work.execute(query).mappings().one_or_none()
        return None if row is None else REVIEW.from_row(row)


def former_from_row(row: Row[*tuple[Any, ...]]) -> model.FormerContent:
    revision, content, replaced_at = row
    return model.FormerContent(revision, content_from_json(content), replaced_at)


def content_to_json(content: model.DecisionContent) -> dict[str, object]:
    # 0.0 and False are stated, and stay.
    values = {name: value for name, value in asdict(content).items() if value not in (None, ())}
    return {name: value.isoformat() if isinstance(value, datetime) else value for name, value in values.items()}


def content_from_json(values: Mapping[str, Any]) -> model.DecisionContent:
    decoded = dict(values)
    for name in DATES & decoded.keys():
        decoded[name] = datetime.fromisoformat(decoded[name])
    for name, kind in WORDS.items():
        if name in decoded:
            decoded[name] = kind(decoded[name])
    decoded["reasons"] = tuple(model.Reason(**reason) for reason in values.get("reasons", ()))
    decoded["tags"] = tuple(values.get("tags", ()))
    return model.DecisionContent(**decoded)
