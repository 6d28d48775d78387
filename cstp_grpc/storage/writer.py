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

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import (
    IntegrityError,
    InterfaceError,
    InternalError,
    OperationalError,
    SQLAlchemyError,
)
from sqlalchemy.exc import TimeoutError as PoolTimeout

from cstp_grpc.errors import Unavailable
from cstp_grpc.storage.damage import describe_damage, is_damage, log_database_error
from cstp_grpc.storage.database_files import DatabaseLost
from cstp_grpc.storage.engine import database_files, driver_of, for_writing, is_intact
from cstp_grpc.storage.insertion import Insertion, insert_together
from cstp_grpc.storage.turns import WriteTurn

logger = logging.getLogger(__name__)

T = TypeVar("T")
Job = Callable[[Connection], T]

MAX_BATCH = 128
"""Jobs in one transaction at the most, so that the first of them does not wait for ever."""

CANNOT_ANSWER = (OperationalError, InterfaceError, InternalError, PoolTimeout)
"""Errors by which the database says that it cannot do what would otherwise be right."""


PRIMARY_CODE = 0xFF
"""The part of SQLite's error codes that is not about details."""

ROLLED_BACK = "40"
"""The class of PostgreSQL's SQLSTATEs for transactions that were undone."""

REPEAT = "repeating the request with the same identifiers is safe"


class OutcomeUnknown(Exception):
    """The database failed while it committed, so that the transaction may be on disk or not."""


class Ticket(Generic[T]):
    """A job on its way to the disk and back; a bare lock tells of its end, because a Future takes 20 us."""

    __slots__ = ("_ended", "_error", "_result", "abandoned", "alone", "job")

    def __init__(self, job: Job[T], *, alone: bool = False) -> None:
        self.job = job
        self.alone = alone
        """Whether it has a transaction of its own."""
        self.abandoned = False
        """Whether nobody waits any more; such a job is not begun."""
        self._result: T | None = None
        self._error: BaseException | None = None
        self._ended = threading.Lock()
        self._ended.acquire()

    def run(self, connection: Connection) -> None:
        """Do the job and keep its result, which counts once the transaction is committed."""
        self._result = self.job(connection)

    def fail(self, error: BaseException) -> None:
        """Keep an error in the place of a result."""
        self._error = error

    def end(self) -> None:
        """Let the caller go on."""
        self._ended.release()

    def wait(self, timeout: float) -> T:
        """Return the result or raise the error. Raises Unavailable after `timeout` seconds."""
        if not self._ended.acquire(timeout=timeout):
            self.abandoned = True
            raise late(timeout)
        return self.outcome()

    def outcome(self) -> T:
        """Return the result or raise the error of a job that has ended."""
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value]


class FutureTicket(Ticket[T]):
    """A ticket that ends a Future, which cannot be cancelled."""

    __slots__ = ("future",)

    def __init__(self, job: Job[T], *, alone: bool = False) -> None:
        super().__init__(job, alone=alone)
        self.future: Future[T] = Future()
        self.future.set_running_or_notify_cancel()

    def end(self) -> None:
        """Let the caller go on."""
        if self._error is not None:
            self.future.set_exception(self._error)
        else:
            self.future.set_result(self.outcome())


class LoopTicket(Ticket[T]):
    """A ticket that a coroutine awaits; its loop settles all tickets of a batch at once."""

    __slots__ = ("future", "loop")

    def __init__(self, job: Job[T], loop: asyncio.AbstractEventLoop, *, alone: bool = False) -> None:
        super().__init__(job, alone=alone)
        self.loop = loop
        self.future: asyncio.Future[T] = loop.create_future()

    def settle(self) -> None:
        """Let the coroutine go on, unless it was cancelled or waited too long; on the loop only."""
        if self.future.done():
            return
        if self._error is not None:
            self.future.set_exception(self._error)
        else:
            self.future.set_result(self.outcome())

    def expire(self, timeout: float) -> None:
        """Let the coroutine go on without a result; on the loop only."""
        if not self.future.done():
            self.abandoned = True
            self.future.set_exception(late(timeout))


class Writer:
    """Runs jobs that write, one after the other on one connection, and commits all that wait together.

    A job gets a Connection inside a transaction and must neither commit nor roll it back. A job that raises is undone
    alone, and its error reaches its caller. A result is handed out only when it is on disk. If the database cannot take
    it, the caller gets Unavailable, and the next job finds a new connection. If it is unknown whether a commit is on
    disk, Unavailable says so.

    Jobs come from threads (`run`), from coroutines (`write`) and from those that wait for neither (`submit`). A thread
    does the jobs that had to wait, and those of coroutines, whose loop it wakes once for each batch. A caller of `run`
    that finds nobody before it does its own, because waking the thread and being woken by it would cost as much as the
    transaction.

    A job that is an Insertion costs the thread least: neighbours of that kind are added together.
    """

    def __init__(self, engine: Engine, timeout: float, turn: WriteTurn | None = None) -> None:
        """Start the thread; `timeout` is how many seconds `run` waits, `turn` is held for each transaction."""
        self._engine = engine
        self._timeout = timeout
        self._turn: AbstractContextManager[object] = turn or nullcontext()
        # A server or process that went silent must hold the thread and no caller; a file answers or fails.
        self._callers_commit = engine.dialect.name == "sqlite" and turn is None
        self._files = database_files(engine)
        self._connection: Connection | None = None
        self._changed = threading.Condition(threading.Lock())
        self._waiting: list[Ticket[Any]] = []
        self._arrivals: dict[asyncio.AbstractEventLoop, list[LoopTicket[Any]]] = {}
        """Tickets of this turn of each loop, which only that loop touches."""
        self._busy = False
        """Whether somebody, thread or caller, has the connection."""
        self._closed = False
        self._thread = threading.Thread(target=self._serve, name="writer", daemon=True)
        self._thread.start()

    def run(self, job: Job[T], *, alone: bool = False) -> T:
        """Return what a job returned, once it is on disk.

        A job that waits for other servers must run `alone`, in a transaction that holds nothing before. Raises what the
        job raised, or Unavailable where the database does not take it or it waits too long; a job that was begun by
        then may still come to be stored.
        """
        ticket = Ticket(job, alone=alone)
        if self._enter(ticket, may_commit=self._callers_commit):
            try:
                self._commit(lambda: [ticket])
            finally:
                self._leave()
        return ticket.wait(self._timeout)

    async def write(self, job: Job[T], *, alone: bool = False) -> T:
        """Return what a job returned, once it is on disk, as `run` does, without holding the event loop.

        If the caller is cancelled, a job that was not begun by then never is.
        """
        loop = asyncio.get_running_loop()
        ticket = LoopTicket(job, loop, alone=alone)
        self._enter_soon(ticket)
        timer = loop.call_later(self._timeout, ticket.expire, self._timeout)
        try:
            return await ticket.future
        except asyncio.CancelledError:
            ticket.abandoned = True
            raise
        finally:
            timer.cancel()

    def submit(self, job: Job[T], *, alone: bool = False) -> Future[T]:
        """Return a future that ends as `run` would, without its time limit. Raises Unavailable after `close`."""
        ticket = FutureTicket(job, alone=alone)
        self._enter(ticket, may_commit=False)
        return ticket.future

    def close(self) -> None:
        """Refuse new jobs and return when all that wait are done."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _enter(self, ticket: Ticket[Any], *, may_commit: bool) -> bool:
        """Return True where the caller has the connection now, and must leave it; else the thread gets the ticket."""
        with self._changed:
            if self._closed:
                raise stopping()
            if may_commit and not self._busy and not self._waiting:
                self._busy = True
                return True
            self._waiting.append(ticket)
            if not self._busy:
                self._changed.notify()
            return False

    def _enter_soon(self, ticket: LoopTicket[Any]) -> None:
        """Give the thread the ticket with all others of this turn of the loop, so that it is woken once for them."""
        if self._closed:
            raise stopping()
        arrivals = self._arrivals.get(ticket.loop)
        if arrivals is None:
            arrivals = self._arrivals[ticket.loop] = []
            ticket.loop.call_soon(self._enter_arrivals, ticket.loop)
        arrivals.append(ticket)

    def _enter_arrivals(self, loop: asyncio.AbstractEventLoop) -> None:
        arrivals = self._arrivals.pop(loop)
        with self._changed:
            if not self._closed:
                self._waiting += arrivals
                if not self._busy:
                    self._changed.notify()
                return
        for ticket in arrivals:
            ticket.fail(stopping())
            ticket.settle()

    def _leave(self) -> None:
        """Give the connection to the next."""
        with self._changed:
            self._busy = False
            if self._waiting or self._closed:
                self._changed.notify()

    def _serve(self) -> None:
        while self._await_tickets():
            self._commit(self._take_batch)
            self._leave()
        self._disconnect()

    def _await_tickets(self) -> bool:
        """Wait for tickets and for the connection, and take the connection; False if no more will come."""
        with self._changed:
            while self._busy or not self._waiting:
                if self._closed and not self._busy:
                    return False
                self._changed.wait()
            self._busy = True
            return True

    def _take_batch(self) -> list[Ticket[Any]]:
        """Return the tickets of the next transaction, which wait no more."""
        with self._changed:
            count = batch_size(self._waiting)
            taken, self._waiting = self._waiting[:count], self._waiting[count:]
        return [ticket for ticket in taken if not ticket.abandoned]

    def _commit(self, take: Callable[[], list[Ticket[Any]]]) -> None:
        """Do the jobs of a batch in one transaction and end their tickets."""
        batch: list[Ticket[Any]] = []
        try:
            with self._turn:
                # Taken only now: what arrived while other processes wrote is part of the transaction.
                batch = take()
                if batch:
                    self._transact(batch)
        except BaseException as error:  # noqa: BLE001 - the callers get it, and the thread must live
            batch = batch or take()
            if not isinstance(error, DatabaseLost):
                log_database_error(logger, f"a transaction failed, and with it {len(batch)} jobs", error)
            self._disconnect()
            for ticket in batch:
                # An interruption is for the caller that was interrupted while it did its own job.
                ticket.fail(unavailable(error) if isinstance(error, Exception) else error)
        end_all(batch)

    def _transact(self, batch: list[Ticket[Any]]) -> None:
        connection = self._connection
        if connection is None:
            connection = self._connection = for_writing(self._engine)
        transaction = connection.begin()
        if self._files is not None:
            self._files.check_log()
        groups = list(group_insertions(batch))
        if len(groups) > 1:
            for group in groups:
                self._run_protected(group, connection)
        elif not self._run(batch, connection):
            # With nobody to protect, the transaction itself is what is undone.
            transaction.rollback()
            if len(batch) == 1:
                return
            transaction = connection.begin()
            self._run_each(batch, connection)
        try:
            transaction.commit()
        except SQLAlchemyError as error:
            raise error if is_certain(error) else OutcomeUnknown from error
        if self._files is not None:
            # SQLite commits to files that it has open, whatever became of their names.
            self._files.check()

    def _run_each(self, group: Sequence[Ticket[Any]], connection: Connection) -> None:
        """Do the jobs of a group that failed together, so that only those that fail alone are undone."""
        for ticket in group:
            self._run_protected([ticket], connection)

    def _run_protected(self, group: Sequence[Ticket[Any]], connection: Connection) -> None:
        """Do the jobs of a group so that an error undoes no others.

        Undoing fails, and with it the whole batch, where the database gave up the transaction itself.
        """
        driver = driver_of(connection)
        driver.execute("SAVEPOINT job")
        succeeded = self._run(group, connection)
        if not succeeded:
            driver.execute("ROLLBACK TO SAVEPOINT job")
        driver.execute("RELEASE SAVEPOINT job")
        if not succeeded and len(group) > 1:
            self._run_each(group, connection)

    def _run(self, group: Sequence[Ticket[Any]], connection: Connection) -> bool:
        """Do the jobs of a group and return whether they succeeded; the error of a lone job is kept for its caller."""
        try:
            if len(group) > 1:
                insert_together(connection, [cast(Insertion, ticket.job) for ticket in group])
            else:
                group[0].run(connection)
            if not is_intact(connection):
                raise RuntimeError("a job went on after an error that ended its transaction")  # noqa: TRY301
        except BaseException as error:  # noqa: BLE001 - the caller gets it, and the thread must live
            if len(group) == 1:
                group[0].fail(answer_to(error))
            return False
        return True

    def _disconnect(self) -> None:
        """Give up the connection; the next batch gets a new one."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        try:
            connection.invalidate()
            connection.close()
        except SQLAlchemyError:
            logger.warning("the writer's connection did not close", exc_info=True)


def batch_size(waiting: Sequence[Ticket[Any]]) -> int:
    """Return how many of the first tickets are done in one transaction."""
    if waiting[0].alone:
        return 1
    first_alone = (position for position, ticket in enumerate(waiting[:MAX_BATCH]) if ticket.alone)
    return next(first_alone, MAX_BATCH)


def group_insertions(batch: Sequence[Ticket[Any]]) -> Iterator[list[Ticket[Any]]]:
    """Yield the tickets of a batch in their order: insertions together with their neighbours, each other job alone."""
    for together, tickets in groupby(batch, key=lambda ticket: isinstance(ticket.job, Insertion)):
        if together:
            yield list(tickets)
        else:
            yield from ([ticket] for ticket in tickets)


def end_all(batch: Sequence[Ticket[Any]]) -> None:
    """Let the callers of a batch go on, and wake each event loop among them once."""
    awaited: dict[asyncio.AbstractEventLoop, list[LoopTicket[Any]]] = {}
    for ticket in batch:
        if isinstance(ticket, LoopTicket):
            awaited.setdefault(ticket.loop, []).append(ticket)
        else:
            ticket.end()
    for loop, tickets in awaited.items():
        try:
            loop.call_soon_threadsafe(settle_all, tickets)
        except RuntimeError:
            # A loop that was closed has nobody left who waits.
            logger.warning("the event loop ended before it heard of its jobs: %d", len(tickets))


def settle_all(tickets: Sequence[LoopTicket[Any]]) -> None:
    """Let the coroutines of a batch go on; on their loop only."""
    for ticket in tickets:
        ticket.settle()


def stopping() -> Unavailable:
    """Return the error for a caller that comes too late."""
    return Unavailable("the server is stopping")


def late(timeout: float) -> Unavailable:
    """Return the error for a caller that waited too long."""
    return Unavailable(f"the record was not on disk after {timeout:g} seconds, and may still be stored; {REPEAT}")


def answer_to(error: BaseException) -> BaseException:
    """Return what the caller of a job that raised is told: Unavailable if the database could not do it."""
    if isinstance(error, CANNOT_ANSWER) or is_damage(error):
        log_database_error(logger, "the database could not do a job", error)
        return unavailable(error)
    return error


def is_certain(error: SQLAlchemyError) -> bool:
    """Whether a commit that raised has certainly stored nothing; after most errors that shows only later."""
    if isinstance(error, IntegrityError):
        return True
    cause = getattr(error, "orig", None)
    code, state = getattr(cause, "sqlite_errorcode", None), getattr(cause, "sqlstate", None)
    if code is not None:
        return code & PRIMARY_CODE in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
    return state is not None and state.startswith(ROLLED_BACK)


def unavailable(cause: BaseException) -> Unavailable:
    """Return the error for a caller; what the database says of the cause goes to the log only."""
    if isinstance(cause, OutcomeUnknown):
        message = f"it is unknown whether the record was stored; {REPEAT}"
    elif isinstance(cause, DatabaseLost):
        message = str(cause)
    elif is_damage(cause):
        message = f"the record could not be stored: {describe_damage(cause)}"
    else:
        message = "the record could not be stored; try again"
    error = Unavailable(message)
    error.__cause__ = cause
    return error
