"""The writer: group commit, errors, limits and reconnecting."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Connection, Engine, event, make_url, text
from sqlalchemy.exc import IntegrityError

from cstp_grpc.errors import Conflict, Unavailable
from cstp_grpc.storage.engine import create_engine, for_writing
from cstp_grpc.storage.writer import MAX_BATCH, Writer
from tests.databases import POOL_SIZE, PostgresServer

BOUND = 20.0
"""Seconds within which what must happen has happened."""


@pytest.fixture(autouse=True)
def things(engine: Engine) -> None:
    with for_writing(engine) as connection, connection.begin():
        connection.execute(text("CREATE TABLE things (name VARCHAR(100) PRIMARY KEY)"))


def add(name: str) -> Callable[[Connection], str]:
    """Return a job that adds a thing and returns its name."""

    def job(connection: Connection) -> str:
        connection.execute(text("INSERT INTO things VALUES (:name)"), {"name": name})
        return name

    return job


def add_and_raise(name: str, error: BaseException) -> Callable[[Connection], str]:
    """Return a job that adds a thing and then fails."""

    def job(connection: Connection) -> str:
        add(name)(connection)
        raise error

    return job


def names(engine: Engine) -> set[str]:
    """Return the things that another connection sees."""
    with engine.connect() as connection:
        return set(connection.execute(text("SELECT name FROM things")).scalars())


@contextmanager
def kept_busy(writer: Writer) -> Iterator[None]:
    """Keep the writer at a job, so that all that is submitted meanwhile is done together afterwards."""
    begun, go_on = threading.Event(), threading.Event()

    def job(connection: Connection) -> None:
        begun.set()
        assert go_on.wait(BOUND)

    blocking = writer.submit(job)
    assert begun.wait(BOUND)
    try:
        yield
    finally:
        go_on.set()
        blocking.result(BOUND)


def test_a_result_is_handed_out_once_it_is_committed(engine: Engine, writer: Writer) -> None:
    assert writer.run(add("a")) == "a"
    assert names(engine) == {"a"}
    assert writer.submit(add("b")).result(BOUND) == "b"
    assert names(engine) == {"a", "b"}


def test_what_waits_is_committed_together(engine: Engine, writer: Writer) -> None:
    commits: list[Connection] = []
    with kept_busy(writer):
        event.listen(engine, "commit", commits.append)
        futures = [writer.submit(add(str(number))) for number in range(20)]
    assert [future.result(BOUND) for future in futures] == [str(number) for number in range(20)]
    the_blocking_one_and_the_rest = 2
    assert len(commits) == the_blocking_one_and_the_rest


def test_a_job_that_runs_alone_has_a_transaction_of_its_own(engine: Engine, writer: Writer) -> None:
    commits: list[Connection] = []
    with kept_busy(writer):
        event.listen(engine, "commit", commits.append)
        plan = (False, False, True, True, False, False)
        futures = [writer.submit(add(str(number)), alone=alone) for number, alone in enumerate(plan)]
    assert [future.result(BOUND) for future in futures] == [str(number) for number in range(6)]
    the_blocking_one_two_together_each_alone_and_two_together = 5
    assert len(commits) == the_blocking_one_two_together_each_alone_and_two_together
    assert writer.run(add("at once"), alone=True) == "at once"


def test_a_batch_is_bounded(engine: Engine, writer: Writer) -> None:
    commits: list[Connection] = []
    with kept_busy(writer):
        event.listen(engine, "commit", commits.append)
        futures = [writer.submit(add(str(number))) for number in range(MAX_BATCH + 1)]
    assert {future.result(BOUND) for future in futures} == names(engine)
    the_blocking_one_a_full_batch_and_the_rest = 3
    assert len(commits) == the_blocking_one_a_full_batch_and_the_rest


@pytest.mark.parametrize("error", [Conflict("no"), ValueError("no"), KeyboardInterrupt()])
def test_an_error_reaches_its_caller_and_leaves_nothing(engine: Engine, writer: Writer, error: BaseException) -> None:
    with pytest.raises(type(error)) as caught:
        writer.run(add_and_raise("a", error))
    assert caught.value is error
    assert names(engine) == set()
    assert writer.run(add("a")) == "a"


def test_a_broken_constraint_reaches_its_caller(writer: Writer) -> None:
    writer.run(add("a"))
    with pytest.raises(IntegrityError):
        writer.run(add("a"))


def test_jobs_that_raise_never_harm_their_neighbours(engine: Engine, writer: Writer) -> None:
    """Whatever mixture of jobs is done together, exactly those that succeed are kept, in their order."""

    @given(st.lists(st.tuples(st.integers(0, 9), st.sampled_from(["add", "raise", "break"])), max_size=12))
    def check(plan: list[tuple[int, str]]) -> None:
        writer.run(lambda connection: connection.execute(text("DELETE FROM things")))
        with kept_busy(writer):
            futures = [(name, kind, writer.submit(job_of(name, kind))) for name, kind in plan]
        expected: set[str] = set()
        for name, kind, future in futures:
            error = future.exception(BOUND)
            if kind == "break" or str(name) in expected:
                assert isinstance(error, IntegrityError)
            elif kind == "raise":
                assert isinstance(error, ValueError)
            else:
                assert error is None
                expected.add(str(name))
        assert names(engine) == expected

    def job_of(name: int, kind: str) -> Callable[[Connection], object]:
        if kind == "break":
            return lambda connection: connection.execute(text("INSERT INTO things VALUES ('twice'), ('twice')"))
        return add(str(name)) if kind == "add" else add_and_raise(str(name), ValueError("no"))

    check()


def test_many_callers_at_once_all_get_their_own_result(engine: Engine, writer: Writer) -> None:
    wanted = [f"{caller}-{turn}" for caller in range(16) for turn in range(25)]
    with ThreadPoolExecutor(16) as callers:
        assert list(callers.map(lambda name: writer.run(add(name)), wanted)) == wanted
    assert names(engine) == set(wanted)


def test_who_waits_too_long_is_told_and_the_job_is_not_begun(engine: Engine) -> None:
    writer = Writer(engine, timeout=0.05)
    with kept_busy(writer), pytest.raises(Unavailable, match=r"not on disk after 0\.05 seconds"):
        writer.run(add("late"))
    assert writer.submit(add("next")).result(BOUND) == "next"
    assert names(engine) == {"next"}
    writer.close()


def test_closing_finishes_what_waits_and_refuses_what_comes(engine: Engine) -> None:
    writer = Writer(engine, timeout=BOUND)
    futures: list[Future[str]] = []
    with kept_busy(writer):
        futures += [writer.submit(add(str(number))) for number in range(5)]
        closing = threading.Thread(target=writer.close)
        closing.start()
    closing.join(BOUND)
    assert not closing.is_alive()
    assert all(future.done() for future in futures)
    assert names(engine) == {str(number) for number in range(5)}
    with pytest.raises(Unavailable, match="stopping"):
        writer.run(add("more"))
    with pytest.raises(Unavailable, match="stopping"):
        writer.submit(add("more"))
    writer.close()


def test_a_failed_commit_fails_all_of_its_jobs_without_telling_why(
    engine: Engine, writer: Writer, database_kind: str
) -> None:
    with kept_busy(writer):
        futures = [writer.submit(job) for job in (add("a"), break_commit(database_kind), add("b"))]
    for future in futures:
        error = future.exception(BOUND)
        assert isinstance(error, Unavailable)
        assert error.message == "the record could not be stored; try again"
    with pytest.raises(Unavailable):
        writer.run(break_commit(database_kind))
    assert names(engine) == set()
    assert writer.run(add("a")) == "a"


def break_commit(database_kind: str) -> Callable[[Connection], object]:
    """Return a job that succeeds, but whose transaction cannot be committed."""

    def orphan(connection: Connection) -> None:
        connection.execute(text("PRAGMA defer_foreign_keys = ON"))
        connection.execute(text("INSERT INTO decision_tags VALUES ('nowhere', 'x')"))

    def deferred(connection: Connection) -> None:
        for statement in (
            "CREATE TABLE others (name VARCHAR(100) REFERENCES things DEFERRABLE INITIALLY DEFERRED)",
            "INSERT INTO others VALUES ('nobody')",
        ):
            connection.execute(text(statement))

    return orphan if database_kind == "sqlite" else deferred


@pytest.mark.parametrize("database_kind", ["postgresql"], indirect=True)
class TestPostgres:
    """What only a server can do to us."""

    def test_a_lost_connection_fails_the_jobs_that_used_it_and_no_later_one(
        self, engine: Engine, writer: Writer
    ) -> None:
        def kill(connection: Connection) -> None:
            connection.execute(text("SELECT pg_terminate_backend(pg_backend_pid())"))

        with kept_busy(writer):
            futures = [writer.submit(job) for job in (add("a"), kill, add("b"))]
        for future in futures:
            assert isinstance(future.exception(BOUND), Unavailable)
        with pytest.raises(Unavailable):
            writer.run(kill)
        assert names(engine) == set()
        assert writer.run(add("a")) == "a"

    def test_the_writer_finds_its_way_back_after_the_server_dropped_it(
        self, engine: Engine, writer: Writer, database_url: str, postgres: PostgresServer
    ) -> None:
        writer.run(add("before"))
        postgres.disconnect(str(make_url(database_url).database))
        with pytest.raises(Unavailable):
            writer.run(add("meanwhile"))
        assert writer.run(add("after")) == "after"
        assert names(engine) == {"before", "after"}

    def test_an_error_that_a_job_hides_is_no_success(self, engine: Engine, writer: Writer) -> None:
        writer.run(add("a"))

        def hide(connection: Connection) -> str:
            try:
                return add("a")(connection)
            except IntegrityError:
                return "all is well"

        with pytest.raises(RuntimeError, match="went on after an error"):
            writer.run(hide)
        with kept_busy(writer):
            futures = [writer.submit(job) for job in (add("b"), hide, add("c"))]
        assert [type(future.exception(BOUND)) for future in futures] == [type(None), RuntimeError, type(None)]
        assert names(engine) == {"a", "b", "c"}


@pytest.mark.parametrize("database_kind", ["sqlite"], indirect=True)
def test_a_database_that_another_process_holds_is_unavailable(
    engine: Engine, database_url: str, database_kind: str
) -> None:
    writer = Writer(engine, timeout=BOUND)
    writer.run(lambda connection: connection.execute(text("PRAGMA busy_timeout = 1")))
    other = create_engine(database_url, POOL_SIZE)
    with for_writing(other) as holding, holding.begin(), pytest.raises(Unavailable):
        writer.run(add("a"))
    assert writer.run(add("a")) == "a"
    writer.close()
    other.dispose()


@pytest.mark.parametrize("database_kind", ["sqlite"], indirect=True)
def test_a_full_disk_is_unavailable_and_keeps_what_was_acknowledged(engine: Engine, writer: Writer) -> None:
    def fill_up(connection: Connection) -> None:
        connection.execute(text("PRAGMA max_page_count = 1"))
        connection.execute(text("CREATE TABLE large AS SELECT zeroblob(10000000) AS content"))

    with kept_busy(writer):
        futures = [writer.submit(job) for job in (add("a"), fill_up, add("b"))]
    errors = [future.exception(BOUND) for future in futures]
    assert isinstance(errors[1], Unavailable)
    assert names(engine) == {name for name, error in zip("a-b", errors, strict=True) if error is None}
    with pytest.raises(Unavailable):
        writer.run(fill_up)
    writer.run(lambda connection: connection.execute(text("PRAGMA max_page_count = 1000000")))
    assert writer.run(add("c")) == "c"
