"""One writer for the database, and its group commit."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from itertools import groupby
from typing import Any, Generic, TypeVar, cast

from sqlalchemy.exc import IntegrityError, InterfaceError, OperationalError, ProgrammingError, SQLAlchemyError
from sqlalchemy.exc import InternalError as DatabaseInternalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from cstp_grpc.errors import InternalError, Unavailable
from cstp_grpc.storage.database import PRIMARY_CODE, Database, describe_damage, is_damage_error, log_database_error
from cstp_grpc.storage.locks import ProcessWriteLock
from cstp_grpc.storage.sqlite_files import DatabaseLost
from cstp_grpc.storage.unit_of_work import RowInsertion, UnitOfWork, run_insertions

logger = logging.getLogger(__name__)

T = TypeVar("T")
WriteJob = Callable[[UnitOfWork], T]

MAX_BATCH = 128
"""Maximum number of jobs in one transaction: the first of them waits for all others."""

CANNOT_ANSWER = (OperationalError, ProgrammingError, InterfaceError, DatabaseInternalError, PoolTimeout)
"""Errors by which the database says that it cannot do what would otherwise be right.

A missing table or privilege is a ProgrammingError on PostgreSQL and an OperationalError on SQLite.
"""

ROLLBACK_SQLSTATE_CLASS = "40"
"""PostgreSQL's class "Transaction Rollback" (https://www.postgresql.org/docs/current/errcodes-appendix.html)."""

REPEAT_IS_SAFE = "repeating the request with the same identifiers is safe"


class CommitOutcomeUnknown(Exception):
    """The database failed during a commit, so that the transaction may or may not be on disk."""


class PendingJob(Generic[T]):
    """A queued write job and its result; a bare lock signals completion, because a Future costs 20 us."""

    __slots__ = ("_ended", "_error", "_result", "abandoned", "alone", "job")

    def __init__(self, job: WriteJob[T], *, alone: bool = False) -> None:
        self.job = job
        self.alone = alone
        """Whether it has a transaction of its own."""
        self.abandoned = False
        """Whether nobody waits any more; such a job is not begun."""
        self._result: T | None = None
        self._error: BaseException | None = None
        # Taken here and released by whoever ends the job, which a Lock allows: it serves as an event that is set once.
        # What was written before the release, `_result` or `_error`, is seen after the acquisition in `wait`.
        self._ended = threading.Lock()
        self._ended.acquire()

    def run(self, unit_of_work: UnitOfWork) -> None:
        """Run the job and keep its result, which is valid once the transaction is committed."""
        self._result = self.job(unit_of_work)

    def fail(self, error: BaseException) -> None:
        """Keep an error instead of a result."""
        self._error = error

    def end(self) -> None:
        """Wake the caller."""
        self._ended.release()

    def wait(self, timeout: float) -> T:
        """Return the result or raise the error. Raises Unavailable after `timeout` seconds."""
        if not self._ended.acquire(timeout=timeout):
            # Set without a lock: a job that was taken a moment ago runs all the same, hence "may still be stored".
            self.abandoned = True
            raise timeout_error(timeout)
        return self.outcome()

    def outcome(self) -> T:
        """Return the result or raise the error of a finished job."""
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value]


class PendingFutureJob(PendingJob[T]):
    """A job whose result completes a Future, which cannot be cancelled."""

    __slots__ = ("future",)

    def __init__(self, job: WriteJob[T], *, alone: bool = False) -> None:
        super().__init__(job, alone=alone)
        self.future: Future[T] = Future()
        self.future.set_running_or_notify_cancel()

    def end(self) -> None:
        """Complete the Future."""
        if self._error is not None:
            self.future.set_exception(self._error)
        else:
            self.future.set_result(self.outcome())


class PendingAsyncJob(PendingJob[T]):
    """A job that a coroutine awaits; its event loop completes all jobs of a batch at once."""

    __slots__ = ("future", "loop")

    def __init__(self, job: WriteJob[T], loop: asyncio.AbstractEventLoop, *, alone: bool = False) -> None:
        super().__init__(job, alone=alone)
        self.loop = loop
        self.future: asyncio.Future[T] = loop.create_future()

    def settle(self) -> None:
        """Complete the future unless it was cancelled or timed out; call it on the loop only."""
        if self.future.done():
            return
        if self._error is not None:
            self.future.set_exception(self._error)
        else:
            self.future.set_result(self.outcome())

    def expire(self, timeout: float) -> None:
        """Fail the future with a timeout; call it on the loop only."""
        if not self.future.done():
            self.abandoned = True
            self.future.set_exception(timeout_error(timeout))


class GroupCommitWriter:
    """Runs write jobs one after the other on one connection, and commits all waiting ones together.

    A job gets a UnitOfWork and must neither commit nor roll it back. A job that raises is rolled back alone, and its
    caller gets the error. A result is returned only when it is on disk. If the database cannot store it, the caller
    gets Unavailable, and the next job uses a new connection. If it is unknown whether a commit is on disk, Unavailable
    says so.

    Jobs come from threads (`run`), from coroutines (`write`) and from callers that do not wait (`submit`). A thread
    runs queued jobs and those of coroutines, whose loop it wakes once per batch. A caller of `run` that finds the
    writer idle runs its own job, because waking the thread and being woken by it would cost as much as the transaction.

    A `RowInsertion` is the cheapest job: neighbouring ones are inserted together.
    """

    def __init__(self, database: Database, timeout: float, turn: ProcessWriteLock | None = None) -> None:
        """Start the thread; `timeout` is how many seconds `run` waits, `turn` is held during each transaction."""
        self._database = database
        self._timeout = timeout
        self._turn: AbstractContextManager[object] = turn or nullcontext()
        # A server or process that went silent must hold the thread and no caller; a file answers or fails.
        self._callers_commit = database.is_sqlite and turn is None
        self._files = database.files
        self._unit_of_work: UnitOfWork | None = None
        """The unit of work of the open connection, which all its transactions share."""
        # Guards `_waiting`, `_busy` and `_closed`. Never held during a transaction, so that callers can queue jobs
        # meanwhile, nor while `_turn` is awaited: `_turn` comes first, and `_lock` is taken within it.
        self._lock = threading.Lock()
        """Entered itself and not by `_changed`, the condition on it, whose methods are slow Python."""
        self._changed = threading.Condition(self._lock)
        self._waiting: list[PendingJob[Any]] = []
        self._arrivals: dict[asyncio.AbstractEventLoop, list[PendingAsyncJob[Any]]] = {}
        """The jobs of the current iteration of each event loop; an entry is used by the thread of its loop alone."""
        self._busy = False
        """Whether a thread owns `_unit_of_work`: the writer's, or one in `run` that found the writer idle.

        It is a flag and no lock, because the owner changes it under `_lock` together with looking at `_waiting`.
        Whoever sets it, in `_wait_for_jobs` or `_enqueue_or_claim`, must call `_release_connection`, which wakes the
        writer's thread for the jobs that were queued in between.
        """
        self._closed = False
        self._thread = threading.Thread(target=self._run_batches, name="writer", daemon=True)
        self._thread.start()

    def run(self, job: WriteJob[T], *, alone: bool = False) -> T:
        """Run a job and return its result once it is on disk.

        A job that waits for other servers must run `alone`, in a transaction that holds no other lock. Raises what the
        job raised, or Unavailable if the database does not store it or it waits too long; a job that had started by
        then may still be stored.
        """
        ticket = PendingJob(job, alone=alone)
        if self._enqueue_or_claim(ticket, may_commit=self._callers_commit):
            try:
                self._commit(lambda: [ticket])
            finally:
                self._release_connection()
        return ticket.wait(self._timeout)

    async def write(self, job: WriteJob[T], *, alone: bool = False) -> T:
        """Run a job and return its result once it is on disk, as `run` does, without blocking the event loop.

        If the caller is cancelled, a job that has not started never runs.
        """
        loop = asyncio.get_running_loop()
        ticket = PendingAsyncJob(job, loop, alone=alone)
        self._enqueue_from_loop(ticket)
        timer = loop.call_later(self._timeout, ticket.expire, self._timeout)
        try:
            return await ticket.future
        except asyncio.CancelledError:
            ticket.abandoned = True
            raise
        finally:
            timer.cancel()

    def submit(self, job: WriteJob[T], *, alone: bool = False) -> Future[T]:
        """Queue a job and return its future, which has no time limit. Raises Unavailable after `close`."""
        ticket = PendingFutureJob(job, alone=alone)
        self._enqueue_or_claim(ticket, may_commit=False)
        return ticket.future

    def close(self) -> None:
        """Refuse new jobs and wait until all queued ones are done."""
        with self._lock:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _enqueue_or_claim(self, ticket: PendingJob[Any], *, may_commit: bool) -> bool:
        """Return True if the caller owns the connection and must release it; else queue the job."""
        with self._lock:
            if self._closed:
                raise stopping_error()
            # Jobs that wait go first: the thread was notified of them and is about to claim the connection.
            if may_commit and not self._busy and not self._waiting:
                self._busy = True
                return True
            self._waiting.append(ticket)
            if not self._busy:
                # Otherwise `_release_connection` does it.
                self._changed.notify()
            return False

    def _enqueue_from_loop(self, ticket: PendingAsyncJob[Any]) -> None:
        """Queue a job with all others of this loop iteration, so that the thread is woken once for them."""
        # Read without the lock; `_flush_arrivals` looks again, with it.
        if self._closed:
            raise stopping_error()
        arrivals = self._arrivals.get(ticket.loop)
        if arrivals is None:
            arrivals = self._arrivals[ticket.loop] = []
            ticket.loop.call_soon(self._flush_arrivals, ticket.loop)
        arrivals.append(ticket)

    def _flush_arrivals(self, loop: asyncio.AbstractEventLoop) -> None:
        arrivals = self._arrivals.pop(loop)
        with self._lock:
            if not self._closed:
                self._waiting += arrivals
                if not self._busy:
                    self._changed.notify()
                return
        for ticket in arrivals:
            ticket.fail(stopping_error())
            ticket.settle()

    def _release_connection(self) -> None:
        """Release the connection to the next job."""
        with self._lock:
            self._busy = False
            if self._waiting or self._closed:
                self._changed.notify()

    def _run_batches(self) -> None:
        while self._wait_for_jobs():
            self._commit(self._take_batch)
            self._release_connection()
        self._disconnect()

    def _wait_for_jobs(self) -> bool:
        """Wait for jobs and claim the connection; return False if the writer is closed and idle."""
        with self._lock:
            while self._busy or not self._waiting:
                if self._closed and not self._busy:
                    return False
                self._changed.wait()
            self._busy = True
            return True

    def _take_batch(self) -> list[PendingJob[Any]]:
        """Return the jobs of the next transaction, without those whose callers gave up."""
        with self._lock:
            count = batch_size(self._waiting)
            taken, self._waiting = self._waiting[:count], self._waiting[count:]
        return [ticket for ticket in taken if not ticket.abandoned]

    def _commit(self, take: Callable[[], list[PendingJob[Any]]]) -> None:
        """Run the jobs of a batch in one transaction and complete them."""
        batch: list[PendingJob[Any]] = []
        try:
            with self._turn:
                # Taken only now: what arrived while other processes wrote is part of the transaction.
                batch = take()
                if batch:
                    self._run_transaction(batch)
        except BaseException as error:  # noqa: BLE001 - the callers get it, and the thread must live
            # If waiting for the turn failed, nothing was taken yet, and the jobs would wait for ever.
            batch = batch or take()
            if not isinstance(error, DatabaseLost):
                log_database_error(logger, f"a transaction failed, and with it {len(batch)} jobs", error)
            # The connection may be in any state, and in the middle of a transaction.
            self._disconnect()
            for ticket in batch:
                # An interruption is for the caller that was interrupted while it did its own job.
                ticket.fail(unavailable_error(error) if isinstance(error, Exception) else error)
        complete_jobs(batch)

    def _run_transaction(self, batch: list[PendingJob[Any]]) -> None:
        unit_of_work = self._unit_of_work
        if unit_of_work is None:
            unit_of_work = self._unit_of_work = UnitOfWork(self._database.open_write_connection())
        try:
            self._run_jobs(batch, unit_of_work)
        finally:
            # After a failure too, since a commit whose outcome is unknown may be on disk.
            unit_of_work.end()

    def _run_jobs(self, batch: list[PendingJob[Any]], unit_of_work: UnitOfWork) -> None:
        unit_of_work.begin()
        if self._files is not None:
            # Within the transaction, whose lock keeps other processes from writing to the log that is checked.
            self._files.check_log()
        groups = list(group_insertions(batch))
        if len(groups) > 1:
            for group in groups:
                self._run_in_savepoint(group, unit_of_work)
        elif not self._run(batch, unit_of_work):
            # With nobody to protect, the transaction itself is what is undone.
            unit_of_work.roll_back()
            if len(batch) == 1:
                return
            unit_of_work.begin()
            self._run_each(batch, unit_of_work)
        try:
            # A crash of this process or machine before this returns leaves all jobs or none of them on disk, and no
            # caller has been told of success. A caller that repeats its request finds what was stored.
            unit_of_work.commit()
        except SQLAlchemyError as error:
            raise error if is_certain_rollback(error) else CommitOutcomeUnknown from error
        if self._files is not None:
            # SQLite commits to files that it has open, whatever became of their names.
            self._files.check()

    def _run_each(self, group: Sequence[PendingJob[Any]], unit_of_work: UnitOfWork) -> None:
        """Run the jobs of a failed group one by one, so that only those that fail are rolled back."""
        for ticket in group:
            self._run_in_savepoint([ticket], unit_of_work)

    def _run_in_savepoint(self, group: Sequence[PendingJob[Any]], unit_of_work: UnitOfWork) -> None:
        """Run the jobs of a group in a savepoint, so that an error rolls back no others.

        If the database ended the transaction itself, the rollback fails, and with it the whole batch.
        """
        # By the driver, since SQLAlchemy's nested transactions take several times as long as an insertion.
        driver = unit_of_work.driver
        driver.execute("SAVEPOINT job")
        succeeded = self._run(group, unit_of_work)
        if not succeeded:
            driver.execute("ROLLBACK TO SAVEPOINT job")
        driver.execute("RELEASE SAVEPOINT job")
        if not succeeded and len(group) > 1:
            self._run_each(group, unit_of_work)

    def _run(self, group: Sequence[PendingJob[Any]], unit_of_work: UnitOfWork) -> bool:
        """Run the jobs of a group and return True on success; a lone job's error is kept for its caller."""
        try:
            if len(group) > 1:
                run_insertions(unit_of_work, [cast(RowInsertion, ticket.job) for ticket in group])
            else:
                group[0].run(unit_of_work)
            if not unit_of_work.can_commit():
                raise RuntimeError("a job went on after an error that ended its transaction")  # noqa: TRY301
        except BaseException as error:  # noqa: BLE001 - the caller gets it, and the thread must live
            if len(group) == 1:
                group[0].fail(caller_error(error))
            return False
        return True

    def _disconnect(self) -> None:
        """Close the connection; the next batch opens a new one."""
        unit_of_work, self._unit_of_work = self._unit_of_work, None
        if unit_of_work is None:
            return
        try:
            unit_of_work.connection.invalidate()
            unit_of_work.connection.close()
        except SQLAlchemyError:
            logger.warning("the writer's connection did not close", exc_info=True)


def batch_size(waiting: Sequence[PendingJob[Any]]) -> int:
    """Return how many of the first jobs run in one transaction."""
    if waiting[0].alone:
        return 1
    for position, ticket in enumerate(waiting):
        if ticket.alone or position == MAX_BATCH:
            return position
    return len(waiting)


def group_insertions(batch: Sequence[PendingJob[Any]]) -> Iterator[list[PendingJob[Any]]]:
    """Yield the jobs of a batch in their order: neighbouring insertions together, each other job alone."""
    if len(batch) == 1:
        # Most batches are of one job unless the server is busy.
        yield [batch[0]]
        return
    for together, tickets in groupby(batch, key=lambda ticket: isinstance(ticket.job, RowInsertion)):
        if together:
            yield list(tickets)
        else:
            yield from ([ticket] for ticket in tickets)


def complete_jobs(batch: Sequence[PendingJob[Any]]) -> None:
    """Complete the jobs of a batch, waking each event loop among their callers once."""
    awaited: dict[asyncio.AbstractEventLoop, list[PendingAsyncJob[Any]]] = {}
    for ticket in batch:
        if isinstance(ticket, PendingAsyncJob):
            awaited.setdefault(ticket.loop, []).append(ticket)
        else:
            ticket.end()
    for loop, tickets in awaited.items():
        try:
            loop.call_soon_threadsafe(settle_async_jobs, tickets)
        except RuntimeError:
            # A loop that was closed has nobody left who waits.
            logger.warning("the event loop ended before it heard of its jobs: %d", len(tickets))


def settle_async_jobs(tickets: Sequence[PendingAsyncJob[Any]]) -> None:
    """Complete the futures of a batch; call it on their loop only."""
    for ticket in tickets:
        ticket.settle()


def stopping_error() -> Unavailable:
    """Return the error for a job that arrives after `close`."""
    return Unavailable("the server is stopping")


def timeout_error(timeout: float) -> Unavailable:
    """Return the error for a caller that waited too long."""
    return Unavailable(
        f"the record was not on disk after {timeout:g} seconds, and may still be stored; {REPEAT_IS_SAFE}"
    )


def caller_error(error: BaseException) -> BaseException:
    """Return the error for the caller of a failed job, in place of an error of the database.

    It is Unavailable if the database could not do the job, and InternalError if it rejected a statement of ours.
    """
    if isinstance(error, CANNOT_ANSWER) or is_damage_error(error):
        log_database_error(logger, "the database could not do a job", error)
        return unavailable_error(error)
    if not isinstance(error, SQLAlchemyError):
        return error
    logger.error("the database rejected a statement of a job", exc_info=error)
    rejected = InternalError("the record could not be stored, because the database rejected it")
    rejected.__cause__ = error
    return rejected


def is_certain_rollback(error: SQLAlchemyError) -> bool:
    """Return True if a failed commit has certainly stored nothing; after most errors that is unknown."""
    if isinstance(error, IntegrityError):
        return True
    cause = getattr(error, "orig", None)
    code, state = getattr(cause, "sqlite_errorcode", None), getattr(cause, "sqlstate", None)
    if code is not None:
        return code & PRIMARY_CODE in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
    return state is not None and state.startswith(ROLLBACK_SQLSTATE_CLASS)


def unavailable_error(cause: BaseException) -> Unavailable:
    """Return the error for a caller; the database's own message goes to the log only."""
    if isinstance(cause, CommitOutcomeUnknown):
        message = f"it is unknown whether the record was stored; {REPEAT_IS_SAFE}"
    elif isinstance(cause, DatabaseLost):
        message = str(cause)
    elif is_damage_error(cause):
        message = f"the record could not be stored: {describe_damage(cause)}"
    else:
        message = "the record could not be stored; try again"
    error = Unavailable(message)
    error.__cause__ = cause
    return error
