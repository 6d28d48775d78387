"""The one thread that writes, and its group commit."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import InterfaceError, InternalError, OperationalError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from cstp_grpc.errors import Unavailable
from cstp_grpc.storage.engine import for_writing

logger = logging.getLogger(__name__)

T = TypeVar("T")
Job = Callable[[Connection], T]

MAX_BATCH = 128
"""Jobs in one transaction at the most, so that the first of them does not wait for ever."""

CANNOT_ANSWER = (OperationalError, InterfaceError, InternalError, PoolTimeout)
"""Errors by which the database says that it cannot do what would otherwise be right."""


class Ticket(Generic[T]):
    """A job on its way to the disk and back; a bare lock tells of its end, at a fifth of the cost of a Future."""

    __slots__ = ("_ended", "_error", "_result", "abandoned", "job")

    def __init__(self, job: Job[T]) -> None:
        self.job = job
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
            raise Unavailable(f"the record was not on disk after {timeout:g} seconds; try again")
        return self.outcome()

    def outcome(self) -> T:
        """Return the result or raise the error of a job that has ended."""
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value]


class FutureTicket(Ticket[T]):
    """A ticket that ends a Future, which cannot be cancelled."""

    __slots__ = ("future",)

    def __init__(self, job: Job[T]) -> None:
        super().__init__(job)
        self.future: Future[T] = Future()
        self.future.set_running_or_notify_cancel()

    def end(self) -> None:
        """Let the caller go on."""
        if self._error is not None:
            self.future.set_exception(self._error)
        else:
            self.future.set_result(self.outcome())


class Writer:
    """Runs jobs that write, one after the other on one connection, and commits all that wait together.

    A job gets a Connection inside a transaction and must neither commit nor roll it back. A job that raises is undone
    alone, and its error reaches its caller. A result is handed out only when it is on disk. Where the database cannot
    take it, the caller gets Unavailable, and the next job finds a new connection.
    """

    def __init__(self, engine: Engine, timeout: float) -> None:
        """Start the thread; `timeout` is how many seconds `run` waits."""
        self._engine = engine
        self._timeout = timeout
        self._connection: Connection | None = None
        self._tickets: SimpleQueue[Ticket[Any] | None] = SimpleQueue()
        self._gate = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._serve, name="writer", daemon=True)
        self._thread.start()

    def run(self, job: Job[T]) -> T:
        """Return what a job returned, once it is on disk.

        Raises what the job raised, or Unavailable where the database does not take it in time; a job that was begun
        by then may still come to be stored.
        """
        ticket = Ticket(job)
        self._put(ticket)
        return ticket.wait(self._timeout)

    def submit(self, job: Job[T]) -> Future[T]:
        """Return a future that ends as `run` would, without its time limit. Raises Unavailable after `close`."""
        ticket = FutureTicket(job)
        self._put(ticket)
        return ticket.future

    def close(self) -> None:
        """Refuse new jobs and return when all that wait are done."""
        with self._gate:
            if not self._closed:
                self._closed = True
                self._tickets.put(None)
        self._thread.join()

    def _put(self, ticket: Ticket[Any]) -> None:
        # Nothing may be queued behind the None that ends the thread.
        with self._gate:
            if self._closed:
                raise Unavailable("the server is stopping")
            self._tickets.put(ticket)

    def _serve(self) -> None:
        batch: list[Ticket[Any]] = []
        while self._collect(batch):
            self._commit(batch)
            batch.clear()
        self._commit(batch)
        self._disconnect()

    def _collect(self, batch: list[Ticket[Any]]) -> bool:
        """Wait for a ticket and take those behind it too; False where no more will come."""
        ticket = self._tickets.get()
        try:
            while ticket is not None:
                if not ticket.abandoned:
                    batch.append(ticket)
                if len(batch) == MAX_BATCH:
                    return True
                ticket = self._tickets.get_nowait()
        except Empty:
            return True
        return False

    def _commit(self, batch: list[Ticket[Any]]) -> None:
        """Do the jobs of a batch in one transaction and end their tickets."""
        if not batch:
            return
        try:
            self._transact(batch)
        except BaseException as error:
            self._disconnect()
            logger.exception("a transaction failed; its %d jobs are answered UNAVAILABLE", len(batch))
            for ticket in batch:
                ticket.fail(unavailable(error))
        for ticket in batch:
            ticket.end()

    def _transact(self, batch: list[Ticket[Any]]) -> None:
        connection = self._connection
        if connection is None:
            connection = self._connection = for_writing(self._engine)
        transaction = connection.begin()
        if len(batch) == 1:
            # With nobody to protect, the transaction itself is what an error undoes.
            try:
                batch[0].run(connection)
            except BaseException as error:  # noqa: BLE001 - it reaches the caller, and the thread must live
                transaction.rollback()
                batch[0].fail(answer_to(error))
                return
        else:
            for ticket in batch:
                self._run_protected(ticket, connection)
        transaction.commit()

    def _run_protected(self, ticket: Ticket[Any], connection: Connection) -> None:
        """Do a job so that its error undoes it alone."""
        driver = connection.connection.driver_connection
        assert driver is not None
        driver.execute("SAVEPOINT job")
        try:
            ticket.run(connection)
        except BaseException as error:  # noqa: BLE001 - it reaches the caller, and the thread must live
            # This fails, and with it the whole batch, where the database gave up the transaction itself.
            driver.execute("ROLLBACK TO SAVEPOINT job")
            ticket.fail(answer_to(error))
        driver.execute("RELEASE SAVEPOINT job")

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


def answer_to(error: BaseException) -> BaseException:
    """Return what the caller of a job that raised is told: Unavailable where the database could not do it."""
    if isinstance(error, CANNOT_ANSWER):
        logger.error("the database could not do a job", exc_info=error)
        return unavailable(error)
    return error


def unavailable(cause: BaseException) -> Unavailable:
    """Return the error for a caller; what the database says of the cause goes to the log only."""
    error = Unavailable("the record could not be stored; try again")
    error.__cause__ = cause
    return error
