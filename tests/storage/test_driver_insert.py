"""Inserting at the driver's own speed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from sqlalchemy import Engine, select
from sqlalchemy.exc import IntegrityError

from cstp_grpc.storage.driver_insert import DriverInsert
from cstp_grpc.storage.engine import for_writing
from cstp_grpc.storage.tables import intents

COLUMNS = ("agent", "correlation_id", "content_hash", "received_at", "intent", "stakes", "confidence", "metadata")
AT = datetime(2026, 2, 4, 21, 0, 0, 123456, timezone(timedelta(hours=2)))


def test_a_row_reads_as_if_sqlalchemy_had_written_it(engine: Engine) -> None:
    insert = DriverInsert(intents, COLUMNS, engine.dialect, returning="id")
    rows = [
        ("a", "1", "hash", AT, "naïve 100% of ? :x %s", "high", 0.9, {"deep": [1, None, {"é": True}]}),
        ("a", "2", "hash", AT, None, "low", None, None),
    ]
    with for_writing(engine) as connection, connection.begin():
        ids = [insert.execute(connection, row) for row in rows]
    query = select(intents.c.id, *(intents.c[name] for name in COLUMNS)).order_by(intents.c.id)
    with engine.connect() as connection:
        stored = connection.execute(query).all()
    assert [tuple(row) for row in stored] == [(key, *row) for key, row in zip(ids, rows, strict=True)]
    assert stored[0].received_at.tzinfo == UTC


def test_errors_are_those_of_sqlalchemy_and_hide_what_was_written(engine: Engine) -> None:
    insert = DriverInsert(intents, COLUMNS, engine.dialect)
    row = ("a", "1", "hash", AT, "a secret intent", "high", None, None)
    with for_writing(engine) as connection:
        assert insert.execute(connection, row) is None
        with pytest.raises(IntegrityError) as broken:
            insert.execute(connection, row)
    assert "a secret intent" not in str(broken.value)
