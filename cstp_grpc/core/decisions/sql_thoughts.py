"""Thoughts in SQL."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import sqlalchemy as sa

from cstp_grpc.common.unicode_text import replace_unstorable
from cstp_grpc.contract.caller import OVERSEER
from cstp_grpc.contract.enums import Visibility
from cstp_grpc.core.decisions import model
from cstp_grpc.core.decisions.sql_tables import thoughts
from cstp_grpc.platform.storage import pagination
from cstp_grpc.platform.storage.database import Database
from cstp_grpc.platform.storage.row_mapper import RowMapper
from cstp_grpc.platform.storage.unit_of_work import GlobalWriteLock, UnitOfWork, UtcDateTime

CONTENT = RowMapper(model.ThoughtContent, thoughts)
THOUGHT = RowMapper(model.Thought, thoughts, nested={"content": CONTENT})
# Without importing the package of intents, which imports this one.
intents = sa.table("intents", sa.column("agent"), sa.column("correlation_id"), sa.column("decision_id"))
COLUMN = thoughts.c
LATEST_FIRST = (COLUMN.recorded_at.desc(), COLUMN.number.desc())
IDS: sa.BindParameter[str] = sa.bindparam("ids", expanding=True)
READER = sa.bindparam("reader", type_=sa.Text)
SAME_INTENT = sa.and_(intents.c.agent == COLUMN.agent, intents.c.correlation_id == COLUMN.correlation_id)
# Not UNION ALL: several revisions of an intent may have been closed with the same decision.
ABOUT = sa.union(
    sa.select(COLUMN.decision_id, COLUMN.number).where(COLUMN.decision_id.in_(IDS)),
    sa.select(intents.c.decision_id, COLUMN.number).join(thoughts, SAME_INTENT).where(intents.c.decision_id.in_(IDS)),
).subquery()
"""The numbers of the thoughts about decisions, and about the intents that were closed with these."""
IS_READABLE = sa.or_(COLUMN.agent == READER, COLUMN.visibility == Visibility.SHARED.value, READER == OVERSEER)
"""The condition of the thoughts that the reader of a decision may read too."""
IS_LIVE = COLUMN.recorded_at > sa.bindparam("expired", type_=UtcDateTime)
COUNTS = (
    sa.select(ABOUT.c.decision_id, sa.func.count())
    .join(thoughts, COLUMN.number == ABOUT.c.number)
    .where(IS_LIVE, IS_READABLE)
    .group_by(ABOUT.c.decision_id)
)


class SqlThoughtStore:
    """Stores thoughts. Those recorded until `expired` count as if they were not there.

    Reads open their own snapshot and raise QueryFailed if the database does not respond. Writes, and the reads they
    depend on, belong to the transaction of the given unit of work.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self.order = GlobalWriteLock(database.dialect)
        """Held by each transaction that writes, first of all."""

    def insert(self, unit_of_work: UnitOfWork, thought: model.Thought) -> None:
        unit_of_work.execute(sa.insert(thoughts).values(THOUGHT.to_row(thought)))

    def find_recorded(
        self, unit_of_work: UnitOfWork, agent: str, request_id: str, expired: datetime
    ) -> model.Thought | None:
        """Return the thought that an agent recorded under a request id, whose expired one is deleted."""
        same = (COLUMN.agent == agent, COLUMN.request_id == request_id)
        unit_of_work.execute(sa.delete(thoughts).where(*same, COLUMN.recorded_at <= expired))
        row = unit_of_work.execute(sa.select(thoughts).where(*same)).mappings().first()
        return None if row is None else THOUGHT.from_row(row)

    def has_intent(self, unit_of_work: UnitOfWork, agent: str, correlation_id: str) -> bool:
        found = sa.select(sa.literal(1)).where(intents.c.agent == agent, intents.c.correlation_id == correlation_id)
        return unit_of_work.execute(found.limit(1)).first() is not None

    def count_own(self, unit_of_work: UnitOfWork, thought: model.Thought, expired: datetime) -> tuple[int, int]:
        """Return how many thoughts an agent has about the target of another one, and in all."""
        about = thought.content
        is_same = COLUMN.correlation_id == about.correlation_id
        if about.decision_id is not None:
            is_same = COLUMN.decision_id == about.decision_id
        own = sa.select(sa.func.count()).where(COLUMN.agent == thought.agent, COLUMN.recorded_at > expired)
        same, every = unit_of_work.execute(sa.select(own.where(is_same).scalar_subquery(), own.scalar_subquery())).one()
        return same, every

    def delete(self, unit_of_work: UnitOfWork, agent: str, thought_id: str) -> bool:
        """Delete a thought of an agent; return whether there was one."""
        # Two servers that delete the same rows in different orders would wait for each other.
        self.order.hold(unit_of_work)
        same = (COLUMN.agent == agent, COLUMN.id == replace_unstorable(thought_id))
        return unit_of_work.execute(sa.delete(thoughts).where(*same)).rowcount > 0

    def remove_expired(self, unit_of_work: UnitOfWork, expired: datetime, limit: int) -> int:
        """Delete up to `limit` expired thoughts, the oldest first, and return their number."""
        self.order.hold(unit_of_work)
        old = sa.select(COLUMN.number).where(COLUMN.recorded_at <= expired).order_by(COLUMN.recorded_at).limit(limit)
        return unit_of_work.execute(sa.delete(thoughts).where(COLUMN.number.in_(old))).rowcount

    def count_about(self, ids: Sequence[str], reader: str, expired: datetime) -> dict[str, int]:
        """Return how many thoughts a reader may read about each of some decisions; those without any are left out."""
        values = {"ids": list(ids), "reader": reader, "expired": expired}
        with self._database.read_snapshot() as unit_of_work:
            return {row[0]: row[1] for row in unit_of_work.execute(COUNTS, values)}

    def page(
        self,
        reader: str,
        decision_id: str | None,
        correlation_id: str | None,
        request: pagination.PageRequest,
        expired: datetime,
    ) -> pagination.Page[model.Thought]:
        """Return the thoughts that a reader may read, latest first.

        Without a decision, these are its own. Raises InvalidArgument for a page token of another listing.
        """
        conditions = (reader, decision_id, correlation_id)
        query, values = sa.select(thoughts).where(IS_LIVE), {"reader": reader, "expired": expired, "ids": [decision_id]}
        if decision_id is not None:
            query = query.where(COLUMN.number.in_(sa.select(ABOUT.c.number)), IS_READABLE)
        elif reader != OVERSEER:
            query = query.where(COLUMN.agent == reader)
        if correlation_id is not None:
            query = query.where(COLUMN.correlation_id == correlation_id)
        if request.token:
            at, number = pagination.decode_page_token(request.token, conditions, (int, int))
            last = sa.tuple_(pagination.from_microseconds(int(at)), int(number))
            query = query.where(sa.tuple_(COLUMN.recorded_at, COLUMN.number) < last)
        with self._database.read_snapshot() as unit_of_work:
            rows = unit_of_work.execute(query.order_by(*LATEST_FIRST).limit(request.limit + 1), values).mappings().all()
        found = [THOUGHT.from_row(row) for row in rows[: request.limit]]
        items = tuple(found[: pagination.count_within_budget(found, estimate_thought_size)])
        if len(rows) == len(items):
            return pagination.Page(items)
        last_row = rows[len(items) - 1]
        key = (pagination.to_microseconds(last_row["recorded_at"]), last_row["number"])
        return pagination.Page(items, pagination.encode_page_token(conditions, key))


def estimate_thought_size(thought: model.Thought) -> int:
    content = thought.content
    return pagination.estimate_message_bytes((thought.agent, content.text, content.decision_id, content.correlation_id))
