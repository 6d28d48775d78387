"""Running statements at the driver's own speed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from sqlalchemy import Engine, bindparam, insert, select, update
from sqlalchemy.exc import IntegrityError, OperationalError, ProgrammingError

from cstp_grpc.storage.engine import create_engine, open_write_connection
from cstp_grpc.storage.tables import intents
from cstp_grpc.storage.unit_of_work import CompiledStatement, bind_parameters
from tests.databases import POOL_SIZE

COLUMNS = ("agent", "correlation_id", "content_hash", "received_at", "intent", "stakes", "confidence", "metadata")
AT = datetime(2026, 2, 4, 21, 0, 0, 123456, timezone(timedelta(hours=2)))
ROWS = [
    ("a", "1", "hash", AT, "naïve 100% of ? :x %s", "high", 0.9, {"deep": [1, None, {"é": True}]}),
    ("a", "2", "hash", AT, None, "low", None, None),
]
ADD = insert(intents).values(bind_parameters(COLUMNS)).returning(intents.c.id)
LISTING = select(intents.c.id, *(intents.c[name] for name in COLUMNS)).order_by(intents.c.id)


def row(values: tuple[object, ...]) -> dict[str, object]:
    return dict(zip(COLUMNS, values, strict=True))


def test_what_it_writes_and_reads_is_as_if_sqlalchemy_did(engine: Engine) -> None:
    add, listing = CompiledStatement(ADD, engine.dialect), CompiledStatement(LISTING, engine.dialect)
    with open_write_connection(engine) as connection, connection.begin():
        ids = [add.all(connection, row(values))[0][0] for values in ROWS]
    with engine.connect() as connection:
        stored = connection.execute(LISTING).all()
        read = listing.all(connection, {})
    assert [tuple(found) for found in stored] == [(key, *values) for key, values in zip(ids, ROWS, strict=True)]
    assert stored[0].received_at.tzinfo == UTC
    assert [tuple(found) for found in read] == [tuple(found) for found in stored]


def test_values_are_bound_where_they_are_named_and_constants_stay(engine: Engine) -> None:
    table = intents.c
    add = CompiledStatement(ADD, engine.dialect)
    change = CompiledStatement(
        update(intents)
        .where(
            table.correlation_id == bindparam("of"), table.stakes == "high", table.received_at <= bindparam("before")
        )
        .values(intent=bindparam("text"), context=bindparam("text")),
        engine.dialect,
    )
    found = CompiledStatement(
        select(table.intent, table.context).where(table.intent == bindparam("text")), engine.dialect
    )
    with open_write_connection(engine) as connection, connection.begin():
        for values in ROWS:
            assert add.first(connection, row(values))
        assert change.run(connection, {"text": "new", "before": AT, "of": "1"}) == 1
        assert change.run(connection, {"text": "newer", "before": AT, "of": "2"}) == 0
        assert change.run(connection, {"text": "newer", "before": AT - timedelta(seconds=1), "of": "1"}) == 0
        assert [tuple(pair) for pair in found.all(connection, {"text": "new"})] == [("new", "new")]
        assert found.first(connection, {"text": "newer"}) is None


def test_reads_of_one_connection_see_one_transaction(engine: Engine) -> None:
    listing = CompiledStatement(LISTING, engine.dialect)
    with engine.connect() as connection:
        assert listing.all(connection, {}) == []
        assert connection.in_transaction()


def test_errors_are_those_of_sqlalchemy_and_hide_what_was_written(engine: Engine) -> None:
    add = CompiledStatement(ADD, engine.dialect)
    values = row(("a", "1", "hash", AT, "a secret intent", "high", None, None))
    with open_write_connection(engine) as connection, connection.begin():
        assert add.first(connection, values) is not None
        with pytest.raises(IntegrityError) as broken:
            add.first(connection, values)
    assert "a secret intent" not in str(broken.value)


def test_a_table_that_is_not_there_is_an_error_of_sqlalchemys(empty_database_url: str) -> None:
    engine = create_engine(empty_database_url, POOL_SIZE)
    listing = CompiledStatement(LISTING, engine.dialect)
    with engine.connect() as connection, pytest.raises((OperationalError, ProgrammingError)):
        listing.all(connection, {})
    engine.dispose()
