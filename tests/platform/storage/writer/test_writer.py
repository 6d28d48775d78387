"""The writer: group commit, errors, limits and reconnecting."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import text

from cstp_grpc.contract.errors import Conflict, InternalError, Unavailable
from cstp_grpc.platform.storage.database import Database
from cstp_grpc.platform.storage.unit_of_work import UnitOfWork
from cstp_grpc.platform.storage.write_jobs import MAX_BATCH, WriteJob
from cstp_grpc.platform.storage.writer import GroupCommitWriter
from tests.platform.storage.writer.jobs import BOUND, Things, TransactionCounter, add, add_and_raise, kept_busy, names


def test_a_result_is_handed_out_once_it_is_committed(database: Database, writer: GroupCommitWriter) -> None:
    assert writer.run(add("a")) == "a"
    assert names(database) == {"a"}
    assert writer.submit(add("b")).result(BOUND) == "b"
    assert names(database) == {"a", "b"}


def test_what_waits_is_committed_together(database: Database, writer: GroupCommitWriter) -> None:
    transactions = TransactionCounter()
    with kept_busy(writer):
        futures = [writer.submit(transactions.counted(add(str(number)))) for number in range(20)]
    assert [future.result(BOUND) for future in futures] == [str(number) for number in range(20)]
    assert transactions.count == 1


def test_a_job_that_runs_alone_has_a_transaction_of_its_own(database: Database, writer: GroupCommitWriter) -> None:
    transactions = TransactionCounter()
    with kept_busy(writer):
        plan = (False, False, True, True, False, False)
        futures = [
            writer.submit(transactions.counted(add(str(number))), alone=alone) for number, alone in enumerate(plan)
        ]
    assert [future.result(BOUND) for future in futures] == [str(number) for number in range(6)]
    two_together_each_alone_and_two_together = 4
    assert transactions.count == two_together_each_alone_and_two_together
    assert writer.run(add("at once"), alone=True) == "at once"


def test_a_batch_is_bounded(database: Database, writer: GroupCommitWriter) -> None:
    transactions = TransactionCounter()
    with kept_busy(writer):
        futures = [writer.submit(transactions.counted(add(str(number)))) for number in range(MAX_BATCH + 1)]
    assert {future.result(BOUND) for future in futures} == names(database)
    a_full_batch_and_the_rest = 2
    assert transactions.count == a_full_batch_and_the_rest


@pytest.mark.parametrize("error", [Conflict("no"), ValueError("no"), KeyboardInterrupt()])
def test_an_error_reaches_its_caller_and_leaves_nothing(
    database: Database, writer: GroupCommitWriter, error: BaseException
) -> None:
    with pytest.raises(type(error)) as caught:
        writer.run(add_and_raise("a", error))
    assert caught.value is error
    assert names(database) == set()
    assert writer.run(add("a")) == "a"


def test_a_broken_constraint_reaches_its_caller(writer: GroupCommitWriter) -> None:
    writer.run(add("a"))
    with pytest.raises(InternalError):
        writer.run(add("a"))


def test_jobs_that_raise_never_harm_their_neighbours(database: Database, writer: GroupCommitWriter) -> None:
    """Whatever mixture of jobs is done together, exactly those that succeed are kept, in their order."""
    things = Things()

    @given(st.lists(st.tuples(st.integers(0, 9), st.sampled_from(["add", "insert", "raise", "break"])), max_size=12))
    def check(plan: list[tuple[int, str]]) -> None:
        writer.run(lambda unit_of_work: unit_of_work.execute(text("DELETE FROM things")))
        with kept_busy(writer):
            futures = [(name, kind, writer.submit(job_of(name, kind))) for name, kind in plan]
        expected: set[str] = set()
        for name, kind, future in futures:
            error = future.exception(BOUND)
            if kind == "break" or str(name) in expected:
                assert isinstance(error, InternalError)
            elif kind == "raise":
                assert isinstance(error, ValueError)
            else:
                assert error is None
                expected.add(str(name))
        assert names(database) == expected

    def job_of(name: int, kind: str) -> Callable[[UnitOfWork], object]:
        if kind == "break":
            return lambda unit_of_work: unit_of_work.execute(text("INSERT INTO things VALUES ('twice'), ('twice')"))
        if kind == "insert":
            return things.insertion(str(name))
        return add(str(name)) if kind == "add" else add_and_raise(str(name), ValueError("no"))

    check()


def test_many_callers_at_once_all_get_their_own_result(database: Database, writer: GroupCommitWriter) -> None:
    wanted = [f"{caller}-{turn}" for caller in range(16) for turn in range(25)]
    with ThreadPoolExecutor(16) as callers:
        assert list(callers.map(lambda name: writer.run(add(name)), wanted)) == wanted
    assert names(database) == set(wanted)


def test_who_waits_too_long_is_told_and_the_job_is_not_begun(database: Database) -> None:
    writer = GroupCommitWriter(database, timeout=0.05)
    with kept_busy(writer), pytest.raises(Unavailable, match=r"not on disk after 0\.05 seconds"):
        writer.run(add("late"))
    assert writer.submit(add("next")).result(BOUND) == "next"
    assert names(database) == {"next"}
    writer.close()


# Insertions


def test_neighbouring_insertions_are_added_together(database: Database, writer: GroupCommitWriter) -> None:
    things, others = Things(), Things()
    jobs: list[WriteJob[Any]] = [
        things.insertion("a"),
        things.insertion("b"),
        others.insertion("c"),
        add("d"),
        things.insertion("e"),
    ]
    with kept_busy(writer):
        futures = [writer.submit(job) for job in jobs]
    for future in futures:
        future.result(BOUND)
    assert (things.batches, others.batches) == ([["a", "b"], ["e"]], [["c"]])
    assert names(database) == set("abcde")


@pytest.mark.parametrize("others", [[], ["job"]])
def test_an_insertion_that_fails_harms_no_neighbour(
    database: Database, writer: GroupCommitWriter, others: list[str]
) -> None:
    things = Things()
    writer.run(things.insertion("known"))
    with kept_busy(writer):
        neighbours = [writer.submit(add(name)) for name in others]
        futures = [writer.submit(things.insertion(name)) for name in ("a", "known", "b", "a", "c")]
    errors = [type(future.exception(BOUND)) for future in futures]
    assert errors == [type(None), InternalError, type(None), InternalError, type(None)]
    assert [future.result(BOUND) for future in neighbours] == others
    assert names(database) == {"known", "a", "b", "c", *others}


def test_closing_finishes_what_waits_and_refuses_what_comes(database: Database) -> None:
    writer = GroupCommitWriter(database, timeout=BOUND)
    futures: list[Future[str]] = []
    with kept_busy(writer):
        futures += [writer.submit(add(str(number))) for number in range(5)]
        closing = threading.Thread(target=writer.close)
        closing.start()
    closing.join(BOUND)
    assert not closing.is_alive()
    assert all(future.done() for future in futures)
    assert names(database) == {str(number) for number in range(5)}
    with pytest.raises(Unavailable, match="stopping"):
        writer.run(add("more"))
    with pytest.raises(Unavailable, match="stopping"):
        writer.submit(add("more"))
    writer.close()


def test_what_waits_for_the_end_of_a_transaction_is_called_before_its_callers_go_on(
    database: Database, writer: GroupCommitWriter
) -> None:
    seen: list[set[str]] = []

    def watched(name: str, error: Exception | None = None) -> WriteJob[str]:
        def job(unit_of_work: UnitOfWork) -> str:
            unit_of_work.call_at_end(lambda: seen.append(names(database)))
            return add(name)(unit_of_work) if error is None else add_and_raise(name, error)(unit_of_work)

        return job

    writer.run(watched("a"))
    assert seen == [{"a"}]
    writer.run(add("b"))
    assert seen == [{"a"}], "a function waits for its own transaction alone"
    seen.clear()
    with pytest.raises(Conflict):
        writer.run(watched("c", Conflict("no")))
    assert seen == [{"a", "b"}]
