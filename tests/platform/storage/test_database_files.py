"""Losing the files of a SQLite database while they are in use."""

from __future__ import annotations

import logging
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import text

from cstp_grpc.contract.errors import QueryFailed, Unavailable
from cstp_grpc.platform.storage.database import BUSY_MILLISECONDS, Database
from cstp_grpc.platform.storage.sqlite_files import DatabaseFiles, DatabaseFileWatch, DatabaseLost
from cstp_grpc.platform.storage.unit_of_work import UnitOfWork
from cstp_grpc.platform.storage.writer import GroupCommitWriter
from tests.databases import journal_template
from tests.example_counts import examples
from tests.waiting import wait_until

pytestmark = pytest.mark.parametrize("database_kind", ["sqlite"], indirect=True)

LOST = "the database's file was removed or replaced while in use; the server must be restarted"
MODES = ["PASSIVE", "FULL", "RESTART", "TRUNCATE"]


@pytest.fixture
def path(database: Database) -> Path:
    """The file of a database with a table of things, in whose log something is."""
    return Path(str(database.engine.url.database))


@pytest.fixture
def files(database: Database, writer: GroupCommitWriter) -> DatabaseFiles:
    found = database.files
    assert found is not None
    writer.run(lambda unit_of_work: unit_of_work.execute(text("CREATE TABLE things (name VARCHAR(100) PRIMARY KEY)")))
    writer.run(add("first", "a" * 20_000))
    return found


def add(*names: str) -> Callable[[UnitOfWork], None]:
    """Return a job that adds things."""

    def job(unit_of_work: UnitOfWork) -> None:
        for name in names:
            unit_of_work.execute(text("INSERT INTO things VALUES (:name)"), {"name": name})

    return job


def log_of(path: Path) -> Path:
    return Path(f"{path}-wal")


def delete(path: Path) -> None:
    path.unlink()


def replace(path: Path) -> None:
    copy = path.with_suffix(".copy")
    shutil.copyfile(path, copy)
    copy.replace(path)


def truncate(path: Path) -> None:
    os.truncate(path, 0)


def truncate_log(path: Path) -> None:
    os.truncate(log_of(path), 0)


def shorten_log(path: Path) -> None:
    os.truncate(log_of(path), log_of(path).stat().st_size - 4000)


def delete_log(path: Path) -> None:
    log_of(path).unlink()


def replace_log(path: Path) -> None:
    replace(log_of(path))


LOSSES = [delete, replace, truncate, truncate_log, shorten_log, delete_log, replace_log]


@pytest.mark.parametrize("lose", LOSSES)
def test_what_is_written_after_a_loss_is_not_acknowledged(
    database: Database, writer: GroupCommitWriter, files: DatabaseFiles, path: Path, lose: Callable[[Path], None]
) -> None:
    lose(path)
    for name in ("b", "c"):
        with pytest.raises(Unavailable) as refused:
            writer.run(add(name))
        assert refused.value.message == LOST
    with pytest.raises(QueryFailed) as unread, database.read_snapshot() as unit_of_work:
        unit_of_work.execute(text("SELECT count(*) FROM things"))
    assert unread.value.message == LOST


@pytest.mark.parametrize("lose", [*LOSSES, lambda path: Path(f"{path}-shm").unlink()])
def test_a_loss_is_noticed_if_nothing_is_written(
    files: DatabaseFiles, path: Path, lose: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[str] = []
    files.on_loss(lambda: heard.append("lost"))
    watch = DatabaseFileWatch(files, interval=0.01)
    files.check_thoroughly()
    lose(path)
    watch.start()
    wait_until(lambda: files.is_lost, "the loss is noticed")
    watch.stop()
    assert heard == ["lost"]
    assert [record.levelno for record in caplog.records] == [logging.CRITICAL]
    with pytest.raises(DatabaseLost):
        files.check()


def test_a_database_that_is_overwritten_where_it_is_is_lost(
    writer: GroupCommitWriter, files: DatabaseFiles, path: Path
) -> None:
    with closing(sqlite3.connect(path)) as other:
        other.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
    files.check_thoroughly()
    path.write_bytes(journal_template())
    with pytest.raises(DatabaseLost):
        files.check_thoroughly()
    with pytest.raises(Unavailable):
        writer.run(add("b"))


def test_a_log_that_was_shortened_and_filled_up_by_another_is_lost(
    writer: GroupCommitWriter, files: DatabaseFiles, path: Path
) -> None:
    """The other process writes behind the gap, so that the size says nothing."""
    os.truncate(log_of(path), log_of(path).stat().st_size - 5000)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("INSERT INTO things VALUES (?)", ("b" * 50_000,))
    with pytest.raises(Unavailable):
        writer.run(add("c"))


def test_nothing_new_is_made_where_a_lost_database_was(
    database: Database, writer: GroupCommitWriter, files: DatabaseFiles, path: Path
) -> None:
    path.unlink()
    for _ in range(2):
        with pytest.raises(Unavailable):
            writer.run(add("b"))
        with pytest.raises(QueryFailed), database.read_snapshot():
            pytest.fail("there is nothing to read")
    assert not path.exists()


def test_an_engine_may_close_all_connections_and_go_on(
    database: Database, writer: GroupCommitWriter, files: DatabaseFiles, path: Path
) -> None:
    """The last connection removes the log, and the next one makes a new one."""
    writer.close()
    for number in range(3):
        database.close()
        assert not log_of(path).exists()
        with closing(GroupCommitWriter(database, timeout=20.0)) as another:
            another.run(add(f"after {number}"))
            files.check_thoroughly()


STEPS = st.one_of(
    st.tuples(st.just("write"), st.integers(0, 30_000)),
    st.tuples(st.just("checkpoint"), st.sampled_from(MODES)),
    st.tuples(st.just("other writes"), st.integers(0, 30_000)),
    st.tuples(st.just("other checkpoints"), st.sampled_from(MODES)),
    st.tuples(st.just("limit"), st.sampled_from([0, 10_000, 1_000_000])),
    st.tuples(st.just("auto"), st.sampled_from([0, 1, 5, 1000])),
    st.tuples(st.just("read"), st.just(0)),
    st.tuples(st.just("vacuum"), st.just(0)),
)


def test_checkpoints_are_no_loss(
    database: Database, writer: GroupCommitWriter, files: DatabaseFiles, path: Path
) -> None:
    """Whoever makes them, whatever the log is cut to, and whoever reads meanwhile."""
    count = iter(range(1_000_000))

    def write(size: int) -> None:
        writer.run(add(f"{next(count)}" + "x" * size))

    def set_pragma(pragma: str) -> None:
        writer.run(lambda unit_of_work: unit_of_work.execute(text(f"PRAGMA {pragma}")))

    @settings(suppress_health_check=[HealthCheck.too_slow], max_examples=examples(60))
    @given(st.lists(STEPS, max_size=25))
    def check(plan: list[tuple[str, int | str]]) -> None:
        with (
            closing(sqlite3.connect(path, isolation_level=None, timeout=0)) as other,
            closing(sqlite3.connect(path, isolation_level=None, timeout=0)) as reader,
        ):
            for what, how in plan:
                if what == "write":
                    write(int(how))
                elif what == "checkpoint":
                    writer.run(lambda unit_of_work: unit_of_work.execute(text("DELETE FROM things")))
                    with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as own:
                        # Those who read are not waited for.
                        own.exec_driver_sql("PRAGMA busy_timeout = 0")
                        own.exec_driver_sql(f"PRAGMA wal_checkpoint({how})")
                        own.exec_driver_sql(f"PRAGMA busy_timeout = {BUSY_MILLISECONDS}")
                elif what == "other writes":
                    other.execute("INSERT INTO things VALUES (?)", (f"{next(count)}" + "y" * int(how),))
                elif what == "other checkpoints":
                    other.execute(f"PRAGMA wal_checkpoint({how})").fetchall()
                elif what == "limit":
                    other.execute(f"PRAGMA journal_size_limit = {how}").fetchall()
                    set_pragma(f"journal_size_limit = {how}")
                elif what == "auto":
                    other.execute(f"PRAGMA wal_autocheckpoint = {how}").fetchall()
                    set_pragma(f"wal_autocheckpoint = {how}")
                elif what == "vacuum" and not reader.in_transaction:
                    other.execute("VACUUM")
                elif reader.in_transaction:
                    reader.execute("COMMIT")
                else:
                    reader.execute("BEGIN")
                    reader.execute("SELECT count(*) FROM things").fetchall()
                files.check()
                files.check_thoroughly()

    check()


WRITES_AND_CHECKPOINTS = """
import random, sys
from sqlalchemy import text
from cstp_grpc.platform.storage.database import open_database
from cstp_grpc.platform.storage.writer import GroupCommitWriter
name, url = sys.argv[1:]
chance = random.Random(name)
database = open_database(url, 2)
writer, files = GroupCommitWriter(database, 60.0), database.files
for number in range(40):
    size = chance.randrange(9000)
    row = {"n": f"{name}-{number}-" + "x" * size}
    writer.run(lambda unit_of_work: unit_of_work.execute(text("INSERT INTO things VALUES (:n)"), row))
    if chance.random() < 0.3:
        with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.exec_driver_sql(f"PRAGMA journal_size_limit = {chance.choice([0, 20000, 10**6])}")
            connection.exec_driver_sql(f"PRAGMA wal_checkpoint({chance.choice(['PASSIVE', 'RESTART', 'TRUNCATE'])})")
    files.check_thoroughly()
writer.close()
database.close()
"""


@pytest.mark.slow
def test_processes_that_write_to_one_file_do_not_take_each_other_for_a_loss(
    database: Database, writer: GroupCommitWriter, files: DatabaseFiles, database_url: str
) -> None:
    command = [sys.executable, "-c", WRITES_AND_CHECKPOINTS]
    processes = [subprocess.Popen([*command, name, database_url], stderr=subprocess.PIPE) for name in "abc"]
    try:
        written = 0
        while any(process.poll() is None for process in processes):
            written += 1
            writer.run(add(f"own-{written}"))
            files.check_thoroughly()
    finally:
        for process in processes:
            process.kill()
        errors = [process.communicate()[1].decode() for process in processes]
    assert errors == ["", "", ""]
    with database.read_snapshot() as unit_of_work:
        assert unit_of_work.execute(text("SELECT count(*) FROM things")).scalar_one() == 3 * 40 + written + 2
