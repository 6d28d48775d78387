"""Connections and what they promise."""

from __future__ import annotations

import stat
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Column, Integer, MetaData, Table, insert, select, text
from sqlalchemy.exc import IntegrityError, StatementError

from cstp_grpc.core.decisions.sql_tables import decision_tags
from cstp_grpc.platform.storage.database import Database, UnsuitableDatabase, open_database
from cstp_grpc.platform.storage.unit_of_work import UtcDateTime
from tests.databases import PostgresServer

instants = Table("instants", MetaData(), Column("id", Integer, primary_key=True), Column("at", UtcDateTime))

OFFSETS = st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))
# The first and the last day have no room for an offset.
INSTANTS = st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30), timezones=OFFSETS)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("mysql://root:s3cret@localhost/cstp", "must begin with sqlite:/// or postgresql://, not mysql://"),
        ("s3cret", "is not a database URL"),
        ("postgresql://root:s3cret@localhost:port/cstp", "is not a database URL"),
        ("sqlite://", "must name a file"),
        ("sqlite:///:memory:", "must name a file"),
    ],
)
def test_a_url_that_cannot_keep_the_journal_is_refused_without_telling_secrets(url: str, reason: str) -> None:
    with pytest.raises(UnsuitableDatabase) as refused:
        open_database(url, 1)
    assert reason in str(refused.value)
    assert "storage.url" in str(refused.value)
    assert "s3cret" not in str(refused.value)


def test_the_folder_of_a_sqlite_file_is_created(tmp_path: Path) -> None:
    database = open_database(f"sqlite:///{tmp_path}/new/folder/journal.db", 1)
    with database.engine.connect() as connection:
        assert connection.execute(text("SELECT 1")).scalar_one() == 1
    database.close()


def test_a_new_sqlite_file_and_its_log_are_private(tmp_path: Path) -> None:
    database = open_database(f"sqlite:///{tmp_path}/journal.db", 2)
    with database.open_write_connection() as connection, connection.begin():
        connection.execute(text("CREATE TABLE things (id INTEGER)"))
        assert {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == dict.fromkeys(
            ("journal.db", "journal.db-wal", "journal.db-shm"), 0o600
        )
    database.close()


def test_the_mode_of_a_sqlite_file_that_is_there_stays(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    path.touch()
    path.chmod(0o640)
    database = open_database(f"sqlite:///{path}", 2)
    with database.engine.connect() as connection:
        assert connection.execute(text("SELECT 1")).scalar_one() == 1
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    database.close()


def test_every_sqlite_connection_is_durable(tmp_path: Path) -> None:
    database = open_database(f"sqlite:///{tmp_path}/journal.db", 2)
    with database.engine.connect() as first, database.engine.connect() as second:
        for connection in (first, second):
            assert connection.execute(text("PRAGMA journal_mode")).scalar_one() == "wal"
            full = 2
            assert connection.execute(text("PRAGMA synchronous")).scalar_one() == full
            in_memory = 2
            assert connection.execute(text("PRAGMA temp_store")).scalar_one() == in_memory
    database.close()


def test_a_server_that_forgets_to_sync_is_not_of_our_making(postgres: PostgresServer) -> None:
    database = open_database(postgres.url("postgres"), 1)
    with database.engine.connect() as connection:
        assert connection.execute(text("SHOW synchronous_commit")).scalar_one() == "on"
        assert connection.execute(text("SHOW timezone")).scalar_one() == "UTC"
    database.close()


def test_references_must_hold(database: Database) -> None:
    with database.open_write_connection() as connection, pytest.raises(IntegrityError):
        connection.execute(insert(decision_tags).values(decision_id="nowhere", tag="x"))


def test_readers_see_one_state_and_wait_for_no_writer(database: Database) -> None:
    with database.open_write_connection() as writing, writing.begin():
        writing.execute(text("CREATE TABLE things (id INTEGER)"))
    count = text("SELECT count(*) FROM things")
    with database.open_write_connection() as writing, writing.begin() as transaction:
        writing.execute(text("INSERT INTO things VALUES (1)"))
        with database.engine.connect() as reading:
            assert reading.execute(count).scalar_one() == 0
        transaction.commit()
    with database.engine.connect() as reading:
        assert reading.execute(count).scalar_one() == 1


def test_instants_come_back_to_the_microsecond_in_utc_and_in_order(database: Database) -> None:
    with database.open_write_connection() as setup, setup.begin():
        instants.create(setup)

    @given(st.lists(INSTANTS, min_size=1, max_size=5))
    def check(values: list[datetime]) -> None:
        with database.open_write_connection() as connection, connection.begin() as transaction:
            for value in values:
                connection.execute(insert(instants).values(at=value))
            stored = connection.execute(select(instants.c.at).order_by(instants.c.at)).scalars().all()
            found = [
                connection.execute(select(instants.c.id).where(instants.c.at == value)).first() for value in values
            ]
            transaction.rollback()
        assert stored == sorted(values)
        assert all(value is not None and value.tzinfo == UTC for value in stored)
        assert None not in found

    check()


def test_an_instant_without_a_time_zone_is_refused(database: Database) -> None:
    with database.open_write_connection() as connection, connection.begin() as transaction:
        instants.create(connection)
        with pytest.raises(StatementError, match="says nothing of its time zone"):
            connection.execute(insert(instants).values(at=datetime(2026, 1, 1)))
        transaction.rollback()
