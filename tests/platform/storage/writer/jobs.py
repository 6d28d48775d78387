"""Jobs for a writer, and what they have written."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar, TypeVarTuple

from sqlalchemy import text

from cstp_grpc.platform.storage.database import Database
from cstp_grpc.platform.storage.unit_of_work import RowInsertion, UnitOfWork
from cstp_grpc.platform.storage.write_jobs import QUIET_PASSES
from cstp_grpc.platform.storage.writer import GroupCommitWriter

ResultT = TypeVar("ResultT")
Ts = TypeVarTuple("Ts")


BOUND = 20.0
"""Seconds within which what must happen has happened."""


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
    # A job is given to the writer with others that come soon.
    for _ in range(2 + QUIET_PASSES):
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


class TransactionCounter:
    """Counts the transactions in which its jobs run."""

    def __init__(self) -> None:
        self.count = 0
        self._is_open = False

    def counted(self, job: Callable[[UnitOfWork], ResultT]) -> Callable[[UnitOfWork], ResultT]:
        """Return a job that does the same."""

        def run(unit_of_work: UnitOfWork) -> ResultT:
            if not self._is_open:
                self._is_open = True
                self.count += 1
                unit_of_work.call_at_end(self._end)
            return job(unit_of_work)

        return run

    def _end(self) -> None:
        self._is_open = False
