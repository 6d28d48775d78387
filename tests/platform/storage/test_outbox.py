"""The numbers of changes in the journal."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import select, text

from cstp_grpc.core.decisions.sql_change_log import SqlChangeLog
from cstp_grpc.core.decisions.sql_tables import outbox
from cstp_grpc.platform.storage.database import Database
from cstp_grpc.platform.storage.unit_of_work import UnitOfWork
from cstp_grpc.platform.storage.writer import GroupCommitWriter

BOUND = 20.0

Change = tuple[int, str]


@pytest.fixture
def change_log(database: Database) -> SqlChangeLog:
    return SqlChangeLog(database)


def append(change_log: SqlChangeLog, writer: GroupCommitWriter, *decision_ids: str) -> list[int]:
    """Note changes in one transaction, and return their numbers."""
    return writer.run(lambda unit_of_work: [change_log.append(unit_of_work, key) for key in decision_ids])


def stored_changes(database: Database) -> list[Change]:
    with database.read_snapshot() as unit_of_work:
        return [(seq, key) for seq, key in unit_of_work.execute(select(outbox.c.seq, outbox.c.decision_id))]


def test_only_the_last_change_is_stored(
    database: Database, change_log: SqlChangeLog, writer: GroupCommitWriter
) -> None:
    assert stored_changes(database) == []
    for decision_ids in (["a"], ["b", "c"], ["a"]):
        numbers = append(change_log, writer, *decision_ids)
        assert stored_changes(database) == [(numbers[-1], decision_ids[-1])]


def test_a_change_that_is_undone_leaves_nothing(
    database: Database, change_log: SqlChangeLog, writer: GroupCommitWriter
) -> None:
    def job(unit_of_work: UnitOfWork) -> None:
        change_log.append(unit_of_work, "b")
        raise ValueError("no")

    def fail() -> None:
        with pytest.raises(ValueError, match="no"):
            writer.run(job)

    fail()
    assert stored_changes(database) == []
    (number,) = append(change_log, writer, "a")
    fail()
    assert stored_changes(database) == [(number, "a")]


def test_numbers_rise_and_are_never_used_again(
    database: Database, change_log: SqlChangeLog, writer: GroupCommitWriter
) -> None:
    """In however many transactions they are given, with or without undone ones between them."""
    last = 0

    @given(st.lists(st.tuples(st.lists(st.sampled_from("abc"), min_size=1, max_size=4), st.booleans()), max_size=8))
    def check(transactions: list[tuple[list[str], bool]]) -> None:
        nonlocal last
        for decision_ids, undone in transactions:
            if undone:
                with database.open_write_connection() as connection, connection.begin() as transaction:
                    for key in decision_ids:
                        change_log.append(UnitOfWork(connection), key)
                    transaction.rollback()
                continue
            numbers = append(change_log, writer, *decision_ids)
            assert numbers == sorted(set(numbers))
            assert numbers[0] > last
            last = numbers[-1]

    check()


def test_a_number_stays_used_when_all_changes_were_removed(
    database: Database, change_log: SqlChangeLog, writer: GroupCommitWriter
) -> None:
    """Earlier versions removed them."""
    (before,) = append(change_log, writer, "a")
    writer.run(lambda unit_of_work: unit_of_work.execute(outbox.delete()))
    (after,) = append(change_log, writer, "a")
    assert after > before


def test_the_changes_that_an_earlier_version_stored_are_removed(
    database: Database, change_log: SqlChangeLog, writer: GroupCommitWriter
) -> None:
    many = [{"decision_id": str(number)} for number in range(2500)]
    writer.run(lambda unit_of_work: unit_of_work.execute(outbox.insert(), many))
    (number,) = append(change_log, writer, "a")
    assert stored_changes(database) == [(number, "a")]


@pytest.mark.parametrize("database_kind", ["postgresql"], indirect=True)
def test_no_number_shows_before_a_smaller_one(
    database: Database, change_log: SqlChangeLog, writer: GroupCommitWriter
) -> None:
    """A second replica waits with its number until the first has committed."""
    second: list[int] = []
    with database.open_write_connection() as connection, connection.begin() as transaction:
        first = change_log.append(UnitOfWork(connection), "first")
        other = threading.Thread(target=lambda: second.extend(append(change_log, writer, "second")))
        other.start()
        wait_for_blocked_lock(UnitOfWork(connection))
        assert stored_changes(database) == []
        transaction.commit()
    other.join(BOUND)
    assert first < second[0]
    assert stored_changes(database) == [(second[0], "second")]


def wait_for_blocked_lock(unit_of_work: UnitOfWork) -> None:
    """Return once somebody waits for an advisory lock."""
    waiting = text(
        "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted "
        "AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    )
    pause = threading.Event()
    for _ in range(2000):
        if unit_of_work.execute(waiting).scalar_one():
            return
        pause.wait(0.01)
    raise AssertionError("nobody waits")
