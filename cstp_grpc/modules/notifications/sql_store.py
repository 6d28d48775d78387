"""The queue of notices in SQL."""

from __future__ import annotations

import json
from collections.abc import Sequence

import sqlalchemy as sa

from cstp_grpc.modules.notifications.model import Notice
from cstp_grpc.platform.storage.database import Database
from cstp_grpc.platform.storage.delivery_queue import SqlDeliveryQueue
from cstp_grpc.platform.storage.row_mapper import ColumnCodec, RowMapper
from cstp_grpc.platform.storage.unit_of_work import IDENTIFIER, UnitOfWork, UtcDateTime, metadata

notices = sa.Table(
    "notices",
    metadata,
    sa.Column("id", IDENTIFIER, primary_key=True),
    sa.Column("webhook", sa.Text, nullable=False),
    sa.Column("event", sa.Text, nullable=False),
    sa.Column("agent", sa.Text, nullable=False),
    sa.Column("content", sa.Text, nullable=False),
    sa.Column("caused_at", UtcDateTime, nullable=False),
    sa.Column("attempts", sa.Integer, nullable=False),
    sa.Column("next_attempt_at", UtcDateTime, nullable=False),
    sa.Index(None, "next_attempt_at"),
    sqlite_with_rowid=False,
)
"""Queued notices, until they are delivered or abandoned; `content` is JSON."""

NOTICE = RowMapper(
    Notice, notices, codecs={"content": ColumnCodec(lambda content: json.dumps(dict(content)), json.loads)}
)


class SqlNoticeStore(SqlDeliveryQueue[Notice]):
    """Stores notices in the table `notices`."""

    def __init__(self, database: Database) -> None:
        super().__init__(database, notices, ("id",), NOTICE.reader(tuple(notices.c)))

    def add(self, unit_of_work: UnitOfWork, items: Sequence[Notice]) -> None:
        self.hold(unit_of_work)
        unit_of_work.execute(sa.insert(notices), list(map(NOTICE.to_row, items)))
