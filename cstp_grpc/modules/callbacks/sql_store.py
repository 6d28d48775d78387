"""The store of citations and notifications in SQL, with its tables as the newest migration leaves them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime

import sqlalchemy as sa

from cstp_grpc.modules.callbacks.model import Citation, Notification
from cstp_grpc.platform.storage.database import Database
from cstp_grpc.platform.storage.delivery_queue import SqlDeliveryQueue
from cstp_grpc.platform.storage.row_mapper import ColumnCodec, RowMapper
from cstp_grpc.platform.storage.unit_of_work import IDENTIFIER, UnitOfWork, UtcDateTime, metadata

citations = sa.Table(
    "citations",
    metadata,
    sa.Column("decision_id", IDENTIFIER, primary_key=True),
    sa.Column("agent", IDENTIFIER, primary_key=True),
    sa.Column("correlation_id", IDENTIFIER, primary_key=True),
    sa.Column("expires_at", UtcDateTime, nullable=False),
    sa.Column("told_at", UtcDateTime),
    sa.Column("url", sa.Text, nullable=False),
    sa.Index(None, "expires_at"),
    sqlite_with_rowid=False,
)
"""Decisions that answers to announcements contained. Their failure is reported once to the announcing agent at `url`.

It is reported until `expires_at`; `told_at` is when the report was queued, NULL before.
"""

callbacks = sa.Table(
    "callbacks",
    metadata,
    sa.Column("id", IDENTIFIER, primary_key=True),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("agent", sa.Text, nullable=False),
    sa.Column("correlation_id", sa.Text, nullable=False),
    sa.Column("decision_id", IDENTIFIER),
    sa.Column("caused_at", UtcDateTime, nullable=False),
    sa.Column("attempts", sa.Integer, nullable=False),
    sa.Column("next_attempt_at", UtcDateTime, nullable=False),
    sa.Column("url", sa.Text, nullable=False),
    sa.Column("response", sa.Text),
    sa.Column("intent_revision", sa.Integer),
    sa.Index(None, "next_attempt_at"),
    sqlite_with_rowid=False,
)
"""Queued notifications, until they are delivered or abandoned; `response` is JSON.

A server leases one before it sends it by setting `next_attempt_at` ahead, so that no other server sends it too.
"""


citation_columns = citations.c
callback_columns = callbacks.c
NOTIFICATION = RowMapper(
    Notification, callbacks, codecs={"response": ColumnCodec(lambda response: json.dumps(dict(response)), json.loads)}
)
KEY = (citation_columns.decision_id, citation_columns.agent, citation_columns.correlation_id)


class SqlCallbackStore(SqlDeliveryQueue[Notification]):
    """Stores citations and notifications in the tables `citations` and `callbacks`."""

    def __init__(self, database: Database) -> None:
        super().__init__(database, callbacks, ("id",), NOTIFICATION.reader(tuple(callbacks.c)))
        added = database.insertion(citations)
        # `told_at` is not among the changed columns: a repeated announcement does not get the same failure twice.
        self._cite = added.on_conflict_do_update(
            index_elements=KEY, set_={"url": added.excluded.url, "expires_at": added.excluded.expires_at}
        )

    def cite(self, unit_of_work: UnitOfWork, citations: Sequence[Citation]) -> None:
        """Insert citations; an existing one gets the new URL and expiry, and stays claimed if it was."""
        self.hold(unit_of_work)
        if citations:
            unit_of_work.execute(self._cite, [asdict(citation) for citation in citations])

    def claim_citations(self, unit_of_work: UnitOfWork, decision_id: str, at: datetime) -> Sequence[Citation]:
        """Mark the unclaimed, unexpired citations of a decision as claimed, and return them."""
        self.hold(unit_of_work)
        # One statement selects and marks, so that no citation is claimed twice.
        claim = (
            sa.update(citations)
            .where(
                citation_columns.decision_id == decision_id,
                citation_columns.told_at.is_(None),
                citation_columns.expires_at > at,
            )
            .values(told_at=at)
            .returning(*KEY, citation_columns.url, citation_columns.expires_at)
        )
        claimed = [Citation(**row) for row in unit_of_work.execute(claim).mappings()]
        # RETURNING has no order of its own.
        return sorted(claimed, key=lambda citation: (citation.agent, citation.correlation_id))

    def release_citation(self, unit_of_work: UnitOfWork, notification: Notification) -> None:
        """Mark the citation of a notification as unclaimed again."""
        self.hold(unit_of_work)
        key = (notification.decision_id, notification.agent, notification.correlation_id)
        unit_of_work.execute(sa.update(citations).where(sa.tuple_(*KEY) == key).values(told_at=None))

    def remove_expired(self, unit_of_work: UnitOfWork, at: datetime, limit: int) -> int:
        """Remove up to `limit` expired citations, and return how many."""
        self.hold(unit_of_work)
        expired = (
            sa.select(*KEY).where(citation_columns.expires_at <= at).order_by(citation_columns.expires_at).limit(limit)
        )
        return unit_of_work.execute(sa.delete(citations).where(sa.tuple_(*KEY).in_(expired))).rowcount

    def add(self, unit_of_work: UnitOfWork, notifications: Sequence[Notification]) -> None:
        self.hold(unit_of_work)
        if notifications:
            unit_of_work.execute(sa.insert(callbacks), list(map(NOTIFICATION.to_row, notifications)))
