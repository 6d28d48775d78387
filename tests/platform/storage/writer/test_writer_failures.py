"""The writer where the database fails, is full, or is held by another process."""

from __future__ import annotations

import logging
import resource
import sqlite3
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest
from sqlalchemy import make_url, text
from sqlalchemy.exc import IntegrityError, OperationalError

from cstp_grpc.contract.errors import Unavailable
from cstp_grpc.platform.storage import writer as writer_module
from cstp_grpc.platform.storage.database import Database, FailureLog, open_database
from cstp_grpc.platform.storage.unit_of_work import UnitOfWork
from cstp_grpc.platform.storage.writer import GroupCommitWriter
from cstp_grpc.server.startup_failures import describe_startup_failure
from tests.databases import POOL_SIZE, PostgresServer
from tests.platform.storage.writer.jobs import BOUND, add, execute, kept_busy, names


def test_a_failed_commit_fails_all_of_its_jobs_without_telling_why(
    database: Database, writer: GroupCommitWriter, database_kind: str
) -> None:
    with kept_busy(writer):
        futures = [writer.submit(job) for job in (add("a"), break_commit(database_kind), add("b"))]
    for future in futures:
        error = future.exception(BOUND)
        assert isinstance(error, Unavailable)
        assert error.message == "the record could not be stored; try again"
    with pytest.raises(Unavailable):
        writer.run(break_commit(database_kind))
    assert names(database) == set()
    assert writer.run(add("a")) == "a"


def break_commit(database_kind: str) -> Callable[[UnitOfWork], object]:
    """Return a job that succeeds, but whose transaction cannot be committed."""

    def orphan(unit_of_work: UnitOfWork) -> None:
        unit_of_work.execute(text("PRAGMA defer_foreign_keys = ON"))
        unit_of_work.execute(text("INSERT INTO decision_tags VALUES ('nowhere', 'x')"))

    def deferred(unit_of_work: UnitOfWork) -> None:
        for statement in (
            "CREATE TABLE others (name VARCHAR(100) REFERENCES things DEFERRABLE INITIALLY DEFERRED)",
            "INSERT INTO others VALUES ('nobody')",
        ):
            unit_of_work.execute(text(statement))

    return orphan if database_kind == "sqlite" else deferred


UNKNOWN = "it is unknown whether the record was stored; repeating the request with the same identifiers is safe"


@pytest.mark.parametrize("database_kind", ["sqlite"], indirect=True)
def test_a_commit_that_the_disk_fails_is_of_unknown_outcome(database: Database, writer: GroupCommitWriter) -> None:
    """SQLite may have written a transaction whose commit it says has failed."""
    writer.run(add("a"))
    log = Path(f"{database.engine.url.database}-wal")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (log.stat().st_size + 100, hard))
    try:
        with pytest.raises(Unavailable) as failed:
            writer.run(add("b"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert failed.value.message == UNKNOWN
    assert writer.run(add("c")) == "c"


@pytest.mark.parametrize("database_kind", ["postgresql"], indirect=True)
class TestPostgres:
    """What only a server can do to us."""

    def test_a_connection_that_is_lost_while_it_commits_leaves_the_outcome_unknown(
        self, database: Database, writer: GroupCommitWriter
    ) -> None:
        for statement in (
            "CREATE FUNCTION fall() RETURNS trigger LANGUAGE plpgsql AS "
            "'BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NULL; END'",
            "CREATE CONSTRAINT TRIGGER falls AFTER INSERT ON things DEFERRABLE INITIALLY DEFERRED "
            "FOR EACH ROW WHEN (NEW.name = 'b') EXECUTE FUNCTION fall()",
        ):
            writer.run(execute(statement))
        with pytest.raises(Unavailable) as failed:
            writer.run(add("b"))
        assert failed.value.message == UNKNOWN
        assert writer.run(add("c")) == "c"

    def test_a_lost_connection_fails_the_jobs_that_used_it_and_no_later_one(
        self, database: Database, writer: GroupCommitWriter
    ) -> None:
        def kill(unit_of_work: UnitOfWork) -> None:
            unit_of_work.execute(text("SELECT pg_terminate_backend(pg_backend_pid())"))

        with kept_busy(writer):
            futures = [writer.submit(job) for job in (add("a"), kill, add("b"))]
        for future in futures:
            assert isinstance(future.exception(BOUND), Unavailable)
        with pytest.raises(Unavailable):
            writer.run(kill)
        assert names(database) == set()
        assert writer.run(add("a")) == "a"

    def test_the_writer_finds_its_way_back_after_the_server_dropped_it(
        self, database: Database, writer: GroupCommitWriter, database_url: str, postgres: PostgresServer
    ) -> None:
        writer.run(add("before"))
        postgres.disconnect(str(make_url(database_url).database))
        with pytest.raises(Unavailable):
            writer.run(add("meanwhile"))
        assert writer.run(add("after")) == "after"
        assert names(database) == {"before", "after"}

    def test_a_database_that_never_answers_keeps_nobody_from_writing_for_ever(
        self, database: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(writer_module, "SILENT_SECONDS", 0.1)
        writer = GroupCommitWriter(database, timeout=0.2)
        try:
            with pytest.raises(Unavailable, match="may still be stored"):
                writer.run(execute("SELECT pg_sleep(600)"))
            assert writer.submit(add("a")).result(BOUND) == "a"
        finally:
            writer.close()

    def test_an_error_that_a_job_hides_is_no_success(self, database: Database, writer: GroupCommitWriter) -> None:
        writer.run(add("a"))

        def hide(unit_of_work: UnitOfWork) -> str:
            try:
                return add("a")(unit_of_work)
            except IntegrityError:
                return "all is well"

        with pytest.raises(RuntimeError, match="went on after an error"):
            writer.run(hide)
        with kept_busy(writer):
            futures = [writer.submit(job) for job in (add("b"), hide, add("c"))]
        assert [type(future.exception(BOUND)) for future in futures] == [type(None), RuntimeError, type(None)]
        assert names(database) == {"a", "b", "c"}


@pytest.mark.parametrize("database_kind", ["sqlite"], indirect=True)
def test_a_database_that_another_process_holds_is_unavailable(
    database: Database, database_url: str, database_kind: str
) -> None:
    writer = GroupCommitWriter(database, timeout=BOUND)
    writer.run(lambda unit_of_work: unit_of_work.execute(text("PRAGMA busy_timeout = 1")))
    other = open_database(database_url, POOL_SIZE)
    with other.open_write_connection() as holding, holding.begin(), pytest.raises(Unavailable):
        writer.run(add("a"))
    assert writer.run(add("a")) == "a"
    writer.close()
    other.close()


def fill_up(unit_of_work: UnitOfWork) -> None:
    """Write more than the database may have."""
    unit_of_work.execute(text("PRAGMA max_page_count = 1"))
    unit_of_work.execute(text("CREATE TABLE large AS SELECT zeroblob(10000000) AS content"))


@pytest.mark.parametrize("database_kind", ["sqlite"], indirect=True)
def test_a_full_disk_is_logged_in_one_line_while_it_lasts(
    writer: GroupCommitWriter, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(20):
        with pytest.raises(Unavailable) as refused:
            writer.run(fill_up)
    # Others log the tasks that an earlier test left to the garbage collection.
    (logged,) = (record for record in caplog.records if record.name.startswith("cstp_grpc."))
    assert (logged.levelno >= logging.WARNING, logged.exc_info) == (True, None)
    assert "database or disk is full" in logged.getMessage()
    assert len(logged.getMessage().splitlines()) == 1
    # A server that cannot write when it starts says so in one line, too.
    stated = "storage.url: the database cannot be used: database or disk is full"
    assert describe_startup_failure(refused.value) == stated


def test_a_condition_is_logged_again_after_a_while(caplog: pytest.LogCaptureFixture) -> None:
    clock = Mock(return_value=0.0)
    failures = FailureLog(logging.getLogger("tests.platform.storage"), clock)
    full, held = sqlite3.OperationalError("full"), sqlite3.OperationalError("held")
    full.sqlite_errorcode, held.sqlite_errorcode = sqlite3.SQLITE_FULL, sqlite3.SQLITE_BUSY
    for seconds in (0.0, 1.0, 9.0, 10.0, 11.0):
        clock.return_value = seconds
        for error in (full, held):
            failures.log("it failed", OperationalError("COMMIT", {}, error))
    assert [record.getMessage() for record in caplog.records] == [
        "it failed: full",
        "it failed: held",
        "it failed: full (2 more failures since the last line)",
        "it failed: held (2 more failures since the last line)",
    ]


@pytest.mark.parametrize("database_kind", ["sqlite"], indirect=True)
def test_a_full_disk_is_unavailable_and_keeps_what_was_acknowledged(
    database: Database, writer: GroupCommitWriter
) -> None:
    with kept_busy(writer):
        futures = [writer.submit(job) for job in (add("a"), fill_up, add("b"))]
    errors = [future.exception(BOUND) for future in futures]
    assert isinstance(errors[1], Unavailable)
    assert names(database) == {name for name, error in zip("a-b", errors, strict=True) if error is None}
    with pytest.raises(Unavailable):
        writer.run(fill_up)
    writer.run(lambda unit_of_work: unit_of_work.execute(text("PRAGMA max_page_count = 1000000")))
    assert writer.run(add("c")) == "c"
