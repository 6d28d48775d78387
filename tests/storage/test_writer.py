"""The writer: group commit, errors, limits and reconnecting."""

from __future__ import annotations

import asyncio
import resource
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import Context
from pathlib import Path
from typing import Any, TypeVar, TypeVarTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import event, make_url, text
from sqlalchemy.exc import IntegrityError

from cstp_grpc.errors import Conflict, InternalError, Unavailable
from cstp_grpc.storage.database import Database, open_database
from cstp_grpc.storage.unit_of_work import RowInsertion, UnitOfWork
from cstp_grpc.storage.writer import MAX_BATCH, GroupCommitWriter, WriteJob
from tests.databases import POOL_SIZE, PostgresServer, ServerWriter

ResultT = TypeVar("ResultT")
Ts = TypeVarTuple("Ts")

BOUND = 20.0
"""Seconds within which what must happen has happened."""


@pytest.fixture(params=["alone", "in_turns"])
def writer(database: Database, request: pytest.FixtureRequest) -> Iterator[GroupCommitWriter]:
    """The writer of a server that has the database for itself, and of one of several servers."""
    writer = GroupCommitWriter(database, 30.0) if request.param == "alone" else ServerWriter(database)
    yield writer
    writer.close()


@pytest.fixture(autouse=True)
def things(database: Database) -> None:
    with database.open_write_connection() as connection, connection.begin():
        connection.execute(text("CREATE TABLE things (name VARCHAR(100) PRIMARY KEY)"))


def add(name: str) -> Callable[[UnitOfWork], str]:
    """Return a job that adds a thing and returns its name."""

    def job(unit_of_work: UnitOfWork) -> str:
        unit_of_work.execute(text("INSERT INTO things VALUES (:name)"), {"name": name})
        return name

    return job


def execute(statement: str) -> Callable[[UnitOfWork], object]:
    """Return a job that executes a statement."""
    return lambda unit_of_work: unit_of_work.execute(text(statement))


def add_and_raise(name: str, error: BaseException) -> Callable[[UnitOfWork], str]:
    """Return a job that adds a thing and then fails."""

    def job(unit_of_work: UnitOfWork) -> str:
        add(name)(unit_of_work)
        raise error

    return job


class Things:
    """Adds things by their names, several at once if need be, and counts how often it was asked to."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []

    def insert_rows(self, unit_of_work: UnitOfWork, rows: Sequence[str]) -> None:
        self.batches.append(list(rows))
        for name in rows:
            add(name)(unit_of_work)

    def insertion(self, name: str) -> RowInsertion:
        return RowInsertion(self, name)


async def begin(coroutine: Coroutine[object, object, ResultT]) -> asyncio.Task[ResultT]:
    """Start a task and return when it waits for the writer, which has its job."""
    task = asyncio.create_task(coroutine)
    # A job is given to the writer with all others of the same turn of the loop.
    for _ in range(3):
        await asyncio.sleep(0)
    return task


def names(database: Database) -> set[str]:
    """Return the things that another connection sees."""
    with database.engine.connect() as connection:
        return set(connection.execute(text("SELECT name FROM things")).scalars())


@contextmanager
def kept_busy(writer: GroupCommitWriter) -> Iterator[None]:
    """Keep the writer at a job, so that all that is submitted meanwhile is done together afterwards."""
    begun, go_on = threading.Event(), threading.Event()

    def job(unit_of_work: UnitOfWork) -> None:
        begun.set()
        assert go_on.wait(BOUND)

    blocking = writer.submit(job)
    assert begun.wait(BOUND)
    try:
        yield
    finally:
        go_on.set()
        blocking.result(BOUND)


def test_a_result_is_handed_out_once_it_is_committed(database: Database, writer: GroupCommitWriter) -> None:
    assert writer.run(add("a")) == "a"
    assert names(database) == {"a"}
    assert writer.submit(add("b")).result(BOUND) == "b"
    assert names(database) == {"a", "b"}


def test_what_waits_is_committed_together(database: Database, writer: GroupCommitWriter) -> None:
    commits: list[object] = []
    with kept_busy(writer):
        event.listen(database.engine, "commit", commits.append)
        futures = [writer.submit(add(str(number))) for number in range(20)]
    assert [future.result(BOUND) for future in futures] == [str(number) for number in range(20)]
    the_blocking_one_and_the_rest = 2
    assert len(commits) == the_blocking_one_and_the_rest


def test_a_job_that_runs_alone_has_a_transaction_of_its_own(database: Database, writer: GroupCommitWriter) -> None:
    commits: list[object] = []
    with kept_busy(writer):
        event.listen(database.engine, "commit", commits.append)
        plan = (False, False, True, True, False, False)
        futures = [writer.submit(add(str(number)), alone=alone) for number, alone in enumerate(plan)]
    assert [future.result(BOUND) for future in futures] == [str(number) for number in range(6)]
    the_blocking_one_two_together_each_alone_and_two_together = 5
    assert len(commits) == the_blocking_one_two_together_each_alone_and_two_together
    assert writer.run(add("at once"), alone=True) == "at once"


def test_a_batch_is_bounded(database: Database, writer: GroupCommitWriter) -> None:
    commits: list[object] = []
    with kept_busy(writer):
        event.listen(database.engine, "commit", commits.append)
        futures = [writer.submit(add(str(number))) for number in range(MAX_BATCH + 1)]
    assert {future.result(BOUND) for future in futures} == names(database)
    the_blocking_one_a_full_batch_and_the_rest = 3
    assert len(commits) == the_blocking_one_a_full_batch_and_the_rest


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


# Coroutines


def test_a_coroutine_gets_its_result_once_it_is_committed(database: Database, writer: GroupCommitWriter) -> None:
    async def run() -> None:
        assert await writer.write(add("a")) == "a"
        assert names(database) == {"a"}
        with pytest.raises(InternalError):
            await writer.write(add("a"))
        with pytest.raises(Conflict):
            await writer.write(add_and_raise("b", Conflict("no")))
        assert await writer.write(add("b"), alone=True) == "b"

    asyncio.run(run())
    assert names(database) == {"a", "b"}


def test_a_coroutines_job_never_runs_on_its_loop(writer: GroupCommitWriter) -> None:
    async def run() -> set[int]:
        return {await writer.write(lambda unit_of_work: threading.get_ident()) for _ in range(3)}

    assert threading.get_ident() not in asyncio.run(run())


def test_a_commit_wakes_each_loop_once(database: Database, writer: GroupCommitWriter) -> None:
    woken: list[object] = []

    class Loop(asyncio.SelectorEventLoop):
        def call_soon_threadsafe(
            self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
        ) -> asyncio.Handle:
            woken.append(self)
            return super().call_soon_threadsafe(callback, *args, context=context)

    async def run() -> list[str]:
        with kept_busy(writer):
            tasks = [await begin(writer.write(add(str(number)))) for number in range(20)]
        return await asyncio.gather(*tasks)

    with asyncio.Runner(loop_factory=Loop) as runner:
        assert runner.run(run()) == [str(number) for number in range(20)]
    assert len(woken) == 1


def test_a_writer_that_closes_refuses_what_it_was_not_given_yet(database: Database) -> None:
    writer = GroupCommitWriter(database, timeout=BOUND)

    async def run() -> None:
        task = asyncio.create_task(writer.write(add("a")))
        asyncio.get_running_loop().call_soon(writer.close)
        with pytest.raises(Unavailable, match="stopping"):
            await task

    asyncio.run(run())
    assert names(database) == set()


def test_two_loops_each_get_their_own_results(database: Database, writer: GroupCommitWriter) -> None:
    async def run(loop: int) -> list[str]:
        return await asyncio.gather(*(writer.write(add(f"{loop}-{number}")) for number in range(30)))

    with ThreadPoolExecutor(2) as threads:
        found = threads.map(lambda loop: asyncio.run(run(loop)), range(2))
        assert list(found) == [[f"{loop}-{number}" for number in range(30)] for loop in range(2)]


def test_a_loop_that_ended_harms_nobody_else(database: Database, writer: GroupCommitWriter) -> None:
    loop = asyncio.new_event_loop()
    with kept_busy(writer):
        abandoned = loop.create_task(writer.write(add("a")))
        loop.run_until_complete(asyncio.sleep(0))
        other = writer.submit(add("b"))
        abandoned.get_coro().close()
        loop.close()
    assert other.result(BOUND) == "b"
    assert writer.run(add("c")) == "c"


def test_a_coroutine_that_is_cancelled_takes_back_a_job_that_was_not_begun(
    database: Database, writer: GroupCommitWriter
) -> None:
    async def run() -> None:
        with kept_busy(writer):
            cancelled, kept = await begin(writer.write(add("a"))), await begin(writer.write(add("b")))
            cancelled.cancel()
            with pytest.raises(asyncio.CancelledError):
                await cancelled
        await kept

    asyncio.run(run())
    assert names(database) == {"b"}


def test_a_coroutine_that_is_cancelled_late_changes_nothing(database: Database, writer: GroupCommitWriter) -> None:
    async def run() -> None:
        begun, go_on = threading.Event(), threading.Event()

        def job(unit_of_work: UnitOfWork) -> str:
            begun.set()
            assert go_on.wait(BOUND)
            return add("a")(unit_of_work)

        task = await begin(writer.write(job))
        assert begun.wait(BOUND)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        go_on.set()
        assert await writer.write(add("b")) == "b"

    asyncio.run(run())
    assert names(database) == {"a", "b"}


def test_a_coroutine_that_waits_too_long_is_told_and_the_job_is_not_begun(database: Database) -> None:
    writer = GroupCommitWriter(database, timeout=0.05)

    async def run() -> None:
        with kept_busy(writer), pytest.raises(Unavailable, match=r"not on disk after 0\.05 seconds"):
            await writer.write(add("late"))

    asyncio.run(run())
    assert writer.submit(add("next")).result(BOUND) == "next"
    assert names(database) == {"next"}
    writer.close()


def test_a_closed_writer_refuses_coroutines(database: Database) -> None:
    writer = GroupCommitWriter(database, timeout=BOUND)
    writer.close()
    with pytest.raises(Unavailable, match="stopping"):
        asyncio.run(writer.write(add("more")))


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


@pytest.mark.parametrize("database_kind", ["sqlite"], indirect=True)
def test_a_full_disk_is_unavailable_and_keeps_what_was_acknowledged(
    database: Database, writer: GroupCommitWriter
) -> None:
    def fill_up(unit_of_work: UnitOfWork) -> None:
        unit_of_work.execute(text("PRAGMA max_page_count = 1"))
        unit_of_work.execute(text("CREATE TABLE large AS SELECT zeroblob(10000000) AS content"))

    with kept_busy(writer):
        futures = [writer.submit(job) for job in (add("a"), fill_up, add("b"))]
    errors = [future.exception(BOUND) for future in futures]
    assert isinstance(errors[1], Unavailable)
    assert names(database) == {name for name, error in zip("a-b", errors, strict=True) if error is None}
    with pytest.raises(Unavailable):
        writer.run(fill_up)
    writer.run(lambda unit_of_work: unit_of_work.execute(text("PRAGMA max_page_count = 1000000")))
    assert writer.run(add("c")) == "c"
