"""Running statements at the driver's own speed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from sqlalchemy import bindparam, case, insert, select, update
from sqlalchemy.exc import IntegrityError, OperationalError, ProgrammingError

from cstp_grpc.contract.errors import QueryFailed
from cstp_grpc.core.intents.sql_store import intents
from cstp_grpc.platform.storage.database import Database, open_database
from cstp_grpc.platform.storage.unit_of_work import CompiledStatement, UnitOfWork, bind_parameters
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


def test_what_it_writes_and_reads_is_as_if_sqlalchemy_did(database: Database) -> None:
    add, listing = CompiledStatement(ADD, database.dialect), CompiledStatement(LISTING, database.dialect)
    with database.open_write_connection() as connection, connection.begin():
        ids = [add.all(UnitOfWork(connection), row(values))[0][0] for values in ROWS]
    with database.read_snapshot() as unit_of_work:
        stored = unit_of_work.execute(LISTING).all()
        read = listing.all(unit_of_work, {})
    assert [tuple(found) for found in stored] == [(key, *values) for key, values in zip(ids, ROWS, strict=True)]
    assert stored[0].received_at.tzinfo == UTC
    assert [tuple(found) for found in read] == [tuple(found) for found in stored]


@pytest.mark.parametrize("count", [1, 2, 3, 17, 64, 131])
def test_rows_that_are_inserted_together_keep_their_order_and_values(database: Database, count: int) -> None:
    add = CompiledStatement(insert(intents).inline().values(bind_parameters(COLUMNS)), database.dialect)
    listing = CompiledStatement(LISTING, database.dialect)
    rows = [("a", str(number), *ROWS[number % 2][2:]) for number in range(count)]
    with database.open_write_connection() as connection, connection.begin():
        add.insert_rows(UnitOfWork(connection), [add.prepare(row(values)) for values in rows])
    with database.read_snapshot() as unit_of_work:
        assert [tuple(found)[1:] for found in listing.all(unit_of_work, {})] == rows


def test_rows_that_are_inserted_together_fail_as_one_would(database: Database) -> None:
    add = CompiledStatement(insert(intents).inline().values(bind_parameters(COLUMNS)), database.dialect)
    prepared = [add.prepare(row(("a", number, *ROWS[0][2:]))) for number in ("1", "2", "1")]
    with (
        database.open_write_connection() as connection,
        pytest.raises(IntegrityError),
        connection.begin(),
    ):
        add.insert_rows(UnitOfWork(connection), prepared)


def test_values_are_bound_where_they_are_named_and_constants_stay(database: Database) -> None:
    table = intents.c
    add = CompiledStatement(ADD, database.dialect)
    change = CompiledStatement(
        update(intents)
        .where(
            table.correlation_id == bindparam("of"), table.stakes == "high", table.received_at <= bindparam("before")
        )
        .values(intent=bindparam("text"), context=bindparam("text")),
        database.dialect,
    )
    found = CompiledStatement(
        select(table.intent, table.context).where(table.intent == bindparam("text")), database.dialect
    )
    with database.open_write_connection() as connection, connection.begin():
        for values in ROWS:
            assert add.first(UnitOfWork(connection), row(values))
        assert change.run(UnitOfWork(connection), {"text": "new", "before": AT, "of": "1"}) == 1
        assert change.run(UnitOfWork(connection), {"text": "newer", "before": AT, "of": "2"}) == 0
        assert (
            change.run(UnitOfWork(connection), {"text": "newer", "before": AT - timedelta(seconds=1), "of": "1"}) == 0
        )
        assert [tuple(pair) for pair in found.all(UnitOfWork(connection), {"text": "new"})] == [("new", "new")]
        assert found.first(UnitOfWork(connection), {"text": "newer"}) is None


def test_reads_of_one_connection_see_one_transaction(database: Database) -> None:
    listing = CompiledStatement(LISTING, database.dialect)
    with database.read_snapshot() as unit_of_work:
        assert listing.all(unit_of_work, {}) == []
        assert unit_of_work.connection.in_transaction()


def test_errors_are_those_of_sqlalchemy_and_hide_what_was_written(database: Database) -> None:
    add = CompiledStatement(ADD, database.dialect)
    values = row(("a", "1", "hash", AT, "a secret intent", "high", None, None))
    with database.open_write_connection() as connection, connection.begin():
        assert add.first(UnitOfWork(connection), values) is not None
        with pytest.raises(IntegrityError) as broken:
            add.first(UnitOfWork(connection), values)
    assert "a secret intent" not in str(broken.value)


def test_a_table_that_is_not_there_is_an_error_of_sqlalchemys(empty_database_url: str) -> None:
    database = open_database(empty_database_url, POOL_SIZE)
    listing = CompiledStatement(LISTING, database.dialect)
    with pytest.raises(QueryFailed) as failed, database.read_snapshot() as unit_of_work:
        listing.all(unit_of_work, {})
    assert isinstance(failed.value.__cause__, (OperationalError, ProgrammingError))
    database.close()


def test_a_parameter_without_a_type_is_refused(database: Database) -> None:
    received = case((intents.c.agent == "a", bindparam("now")), else_=intents.c.received_at)
    statement = CompiledStatement(update(intents).values(received_at=received), database.dialect)
    with pytest.raises(TypeError, match="now"):
        statement.prepare({"now": AT})
