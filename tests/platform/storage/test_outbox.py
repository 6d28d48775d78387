"""The outbox."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import text

from cstp_grpc.core.decisions.sql_change_log import DecisionChange, SqlChangeLog
from cstp_grpc.platform.storage.database import Database
from cstp_grpc.platform.storage.unit_of_work import UnitOfWork
from cstp_grpc.platform.storage.writer import GroupCommitWriter

BOUND = 20.0


@pytest.fixture
def outbox(database: Database, writer: GroupCommitWriter) -> SqlChangeLog:
    return SqlChangeLog(database, writer)


def append(outbox: SqlChangeLog, writer: GroupCommitWriter, decision_id: str) -> int:
    return writer.run(lambda unit_of_work: outbox.append(unit_of_work, decision_id))


def test_changes_come_out_in_the_order_they_went_in(outbox: SqlChangeLog, writer: GroupCommitWriter) -> None:
    seqs = [append(outbox, writer, decision_id) for decision_id in ("a", "b", "a")]
    assert outbox.peek(10) == [DecisionChange(seqs[0], "a"), DecisionChange(seqs[1], "b"), DecisionChange(seqs[2], "a")]
    assert outbox.peek(2) == [DecisionChange(seqs[0], "a"), DecisionChange(seqs[1], "b")]
    assert outbox.depth() == len(seqs)


def test_numbers_rise_on_after_the_outbox_was_cleared(outbox: SqlChangeLog, writer: GroupCommitWriter) -> None:
    before = append(outbox, writer, "a")
    outbox.clear()
    assert outbox.peek(10) == []
    assert append(outbox, writer, "a") > before


def test_a_change_that_is_undone_leaves_nothing(outbox: SqlChangeLog, writer: GroupCommitWriter) -> None:
    def job(unit_of_work: UnitOfWork) -> None:
        outbox.append(unit_of_work, "a")
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        writer.run(job)
    assert outbox.depth() == 0


def test_numbers_rise_and_are_never_used_again(outbox: SqlChangeLog, writer: GroupCommitWriter) -> None:
    """Whatever is added and taken out, in any order, even all of it."""
    known: dict[int, str] = {row.seq: row.decision_id for row in outbox.peek(1000)}
    last = 0

    @given(st.lists(st.one_of(st.sampled_from("abc"), st.integers(0, 5)), max_size=12))
    def check(steps: list[str | int]) -> None:
        nonlocal last
        for step in steps:
            if isinstance(step, str):
                seq = append(outbox, writer, step)
                assert seq > last
                last = seq
                known[seq] = step
            else:
                taken = list(known)[: step or None]
                outbox.acknowledge(taken)
                for seq in taken:
                    del known[seq]
        assert outbox.peek(1000) == [DecisionChange(seq, decision_id) for seq, decision_id in known.items()]
        assert outbox.depth() == len(known)

    check()


def test_any_number_of_changes_is_taken_out_at_once(outbox: SqlChangeLog, writer: GroupCommitWriter) -> None:
    def job(unit_of_work: UnitOfWork) -> list[int]:
        return [outbox.append(unit_of_work, str(number)) for number in range(2500)]

    seqs = writer.run(job)
    outbox.acknowledge(seqs[:-1])
    assert outbox.peek(10) == [DecisionChange(seqs[-1], "2499")]
    outbox.acknowledge([])
    outbox.acknowledge(seqs)
    assert outbox.depth() == 0


@pytest.mark.parametrize("database_kind", ["postgresql"], indirect=True)
def test_no_number_shows_before_a_smaller_one(
    database: Database, outbox: SqlChangeLog, writer: GroupCommitWriter
) -> None:
    """A second replica waits with its number until the first has committed."""
    second: list[int] = []
    with database.open_write_connection() as connection, connection.begin() as transaction:
        first = outbox.append(UnitOfWork(connection), "first")
        other = threading.Thread(target=lambda: second.append(append(outbox, writer, "second")))
        other.start()
        wait_for_blocked_lock(UnitOfWork(connection))
        assert outbox.peek(10) == []
        transaction.commit()
    other.join(BOUND)
    assert [row.seq for row in outbox.peek(10)] == [first, *second]
    assert first < second[0]


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
