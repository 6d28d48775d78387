"""Noticing what other processes write."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event

import pytest
from sqlalchemy import func, select

from cstp_grpc.contract.errors import QueryFailed
from cstp_grpc.core.decisions.sql_change_log import SqlChangeLog
from cstp_grpc.core.decisions.sql_tables import outbox as outbox_table
from cstp_grpc.platform.storage.change_watch import ChangeWatch, DatabaseVersion, NotificationListener
from cstp_grpc.platform.storage.database import Database
from cstp_grpc.platform.storage.unit_of_work import UnitOfWork
from cstp_grpc.platform.storage.writer import GroupCommitWriter
from tests.waiting import wait_until

INTERVAL = 0.01
NEVER = 3600.0


@contextmanager
def watching(database: Database, *listeners: Callable[[], object], interval: float = INTERVAL) -> Iterator[None]:
    """Watch a database for the length of a block."""
    watch = ChangeWatch(database, interval, listeners)
    watch.start()
    try:
        yield
    finally:
        watch.stop()


@pytest.fixture
def outbox(database: Database) -> SqlChangeLog:
    return SqlChangeLog(database)


def append(outbox: SqlChangeLog, writer: GroupCommitWriter) -> int:
    return writer.run(lambda unit_of_work: outbox.append(unit_of_work, "a"))


def last_change(database: Database) -> int:
    """Return the number of the last change, or 0."""
    with database.background_snapshot() as unit_of_work:
        return unit_of_work.execute(select(func.coalesce(func.max(outbox_table.c.seq), 0))).scalar_one()


def test_each_commit_makes_another_version_and_reading_makes_none(
    database: Database, writer: GroupCommitWriter, outbox: SqlChangeLog
) -> None:
    version = DatabaseVersion(database)
    seen = [version.read()]
    for _ in range(3):
        append(outbox, writer)
        seen.append(version.read())
    assert len(set(seen)) == len(seen)
    # Servers of other tests may share PostgreSQL; each has a SQLite file of its own.
    if database.dialect.name == "sqlite":
        assert last_change(database) == 3
        assert version.read() == seen[-1]
    version.close()


def test_a_version_read_on_a_new_connection_is_another_one(
    database: Database, writer: GroupCommitWriter, outbox: SqlChangeLog
) -> None:
    version = DatabaseVersion(database)
    before = version.read()
    version.close()
    append(outbox, writer)
    assert version.read() != before
    version.close()


def test_listeners_are_called_after_each_commit(
    database: Database, writer: GroupCommitWriter, outbox: SqlChangeLog
) -> None:
    seen: list[int] = []
    last = 0
    with watching(database, lambda: seen.append(last_change(database))):
        for _ in range(3):
            wait_until(lambda last=last: last in seen, f"{last} is seen")  # type: ignore[misc]
            last = append(outbox, writer)
        wait_until(lambda: last in seen, "the last is seen")
    assert append(outbox, writer) not in seen


def test_a_listener_that_fails_is_called_again_without_another_commit(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[int] = []
    succeeded = Event()

    def listen() -> None:
        calls.append(1)
        if len(calls) < 3:
            raise QueryFailed("the journal cannot be read now; try again")
        succeeded.set()

    with caplog.at_level(logging.WARNING, "cstp_grpc.platform.storage.change_watch"), watching(database, listen):
        wait_until(succeeded.is_set, "it is called until it succeeds")
    told = [record for record in caplog.records if record.name == "cstp_grpc.platform.storage.change_watch"]
    assert [record.getMessage() for record in told] == [
        "changes by other servers are not seen: the journal cannot be read now; try again"
    ]


@pytest.mark.parametrize("database_kind", ["postgresql"], indirect=True)
def test_a_watch_finds_its_way_back_after_the_database_dropped_it(
    database: Database, writer: GroupCommitWriter, outbox: SqlChangeLog, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[int] = []
    with caplog.at_level(logging.WARNING, "cstp_grpc.platform.storage.change_watch"):
        with watching(database, lambda: seen.append(last_change(database))):
            wait_until(lambda: seen[-1:] == [0], "the watch looks")
            with database.engine.begin() as connection:
                connection.exec_driver_sql(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE datname = current_database() AND query = 'SELECT txid_current_snapshot()::text' "
                    "AND pid <> pg_backend_pid()"
                )
            number = append(outbox, writer)
            wait_until(lambda: seen[-1:] == [number], "the watch looks again")
        assert len(caplog.records) <= 1


def test_a_watch_that_was_never_started_can_be_stopped(database: Database) -> None:
    ChangeWatch(database, 60.0, []).stop()


@pytest.mark.parametrize("database_kind", ["postgresql"], indirect=True)
def test_a_notified_commit_is_noticed_without_asking_for_it(
    database: Database, writer: GroupCommitWriter, outbox: SqlChangeLog
) -> None:
    last = append(outbox, writer)
    seen: list[int] = []
    with watching(database, lambda: seen.append(last_change(database)), interval=NEVER):
        for _ in range(3):
            wait_until(lambda last=last: last in seen, f"{last} is seen")  # type: ignore[misc]
            last = append(outbox, writer)
        wait_until(lambda: last in seen, "the last is seen")


def end_listening(database: Database) -> None:
    """End the connections on which servers wait for notifications."""
    with database.engine.begin() as connection:
        connection.exec_driver_sql(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND query LIKE 'LISTEN %%'"
        )


@pytest.mark.parametrize("database_kind", ["postgresql"], indirect=True)
def test_a_lost_listener_tells_of_what_it_may_have_missed_and_comes_back(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    changes: list[bool] = []
    listener = NotificationListener(database, lambda: changes.append(listener.is_listening))
    with caplog.at_level(logging.WARNING, "cstp_grpc.platform.storage.change_watch"):
        listener.start()
        try:
            wait_until(lambda: changes == [True], "it listens")
            end_listening(database)
            wait_until(lambda: False in changes and changes[-1], "it listens again")
        finally:
            listener.stop()
    assert changes[-1] is False
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
        "the database sends no notifications of changes, so it is polled for them"
    ]


@pytest.mark.parametrize("database_kind", ["postgresql"], indirect=True)
def test_a_job_that_is_rolled_back_notifies_nobody(
    database: Database, writer: GroupCommitWriter, outbox: SqlChangeLog
) -> None:
    changed = Event()
    listener = NotificationListener(database, changed.set)
    listener.start()
    try:
        wait_until(lambda: listener.is_listening and changed.is_set(), "it listens")
        changed.clear()

        def fail(unit_of_work: UnitOfWork) -> None:
            outbox.append(unit_of_work, "a")
            raise QueryFailed("on purpose")

        with pytest.raises(QueryFailed):
            writer.run(fail)
        assert not changed.is_set()
        append(outbox, writer)
        assert changed.wait(30)
    finally:
        listener.stop()
