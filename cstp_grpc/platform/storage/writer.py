"""One writer for the database, and its group commit."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from itertools import groupby
from typing import Any, Final, Protocol, TypeVar, cast

from sqlalchemy.exc import SQLAlchemyError

from cstp_grpc.contract.errors import Unavailable
from cstp_grpc.platform.storage import write_jobs
from cstp_grpc.platform.storage.database import (
    CommitOutcomeUnknown,
    Database,
    FailureLog,
    caller_error,
    is_certain_rollback,
    unavailable_error,
)
from cstp_grpc.platform.storage.locks import ProcessWriteLock
from cstp_grpc.platform.storage.sqlite_files import DatabaseLost
from cstp_grpc.platform.storage.unit_of_work import RowInsertion, UnitOfWork, run_insertions

logger = logging.getLogger(__name__)

T = TypeVar("T")

SILENT_SECONDS = 60.0
"""How long a transaction may take while callers give up waiting, until its connection is ended. Chosen: longer than any
import takes, and the longest that writing may rest on a database that accepts packets and answers nothing."""

NOT_MEASURED: Final = nullcontext()


def do_not_measure() -> AbstractContextManager[object]:
    return NOT_MEASURED


class CommitObserver(Protocol):
    """Observes transactions, on the threads that run them. It must neither block nor raise."""

    def measure_write(self) -> AbstractContextManager[object]:
        """Measure the block, in which a caller waits until its write is on disk."""

    def observe_commit(self, jobs: int, seconds: float, commit_seconds: float) -> None:
        """Note that a transaction of some jobs was committed; both durations are in seconds."""

    def observe_failure(self) -> None:
        """Note that a transaction failed, and all its jobs."""


class GroupCommitWriter:
    """Runs write jobs one after the other on one connection, and commits all waiting ones together.

    A job gets a UnitOfWork and must neither commit nor roll it back. A job that raises is rolled back alone, and its
    caller gets the error. A result is returned only when it is on disk. If the database cannot store it, the caller
    gets Unavailable, and the next job uses a new connection. If it is unknown whether a commit is on disk, Unavailable
    says so.

    Jobs come from threads (`run`), from coroutines (`write`) and from callers that do not wait (`submit`). A thread
    runs queued jobs and those of coroutines, whose loop it wakes once per batch. If several coroutines write at a time,
    their loop hands over their jobs together, so that the thread does not compete with the loop for the interpreter's
    lock over many small transactions. A caller of `run` that finds the
    writer idle runs its own job, because waking the thread and being woken by it would cost as much as the transaction.

    A `RowInsertion` is the cheapest job: neighbouring ones are inserted together.
    """

    def __init__(
        self,
        database: Database,
        timeout: float,
        turn: ProcessWriteLock | None = None,
        observer: CommitObserver | None = None,
    ) -> None:
        """Start the thread; `timeout` is how many seconds `run` waits, `turn` is held during each transaction."""
        self._database = database
        self._observer = observer
        self._measure_write = do_not_measure if observer is None else observer.measure_write
        self._timeout = timeout
        self._turn: AbstractContextManager[object] = turn or nullcontext()
        # A server or process that went silent must hold the thread and no caller; a file answers or fails.
        self._callers_commit = database.is_sqlite and turn is None
        self._files = database.files
        self._failures = FailureLog(logger)
        self._unit_of_work: UnitOfWork | None = None
        """The unit of work of the open connection, which all its transactions share."""
        self._transaction_began: float | None = None
        """The monotonic time at which the transaction in progress began; None between two."""
        # Guards `_waiting`, `_busy` and `_closed`. Never held during a transaction, so that callers can queue jobs
        # meanwhile, nor while `_turn` is awaited: `_turn` comes first, and `_lock` is taken within it.
        self._lock = threading.Lock()
        """Entered itself and not by `_changed`, the condition on it, whose methods are slow Python."""
        self._changed = threading.Condition(self._lock)
        self._waiting: list[write_jobs.PendingJob[Any]] = []
        self._gathered: dict[asyncio.AbstractEventLoop, write_jobs.GatheredJobs] = {}
        """The jobs that each event loop will hand over next; an entry is used by the thread of its loop alone."""
        self._last_count = 1
        """How many jobs an event loop has handed over last."""
        self._busy = False
        """Whether a thread owns `_unit_of_work`: the writer's, or one in `run` that found the writer idle.

        It is a flag and not a lock, because the owner changes it under `_lock` together with looking at `_waiting`.
        A thread that sets it (`_wait_for_jobs`, `_enqueue_or_claim`) must call `_release_connection`, which wakes the
        writer's thread for the jobs that were queued in between.
        """
        self._closed = False
        self._thread = threading.Thread(target=self._run_batches, name="writer", daemon=True)
        self._thread.start()

    def run(self, job: write_jobs.WriteJob[T], *, alone: bool = False) -> T:
        """Run a job and return its result once it is on disk.

        A job that waits for other servers must run `alone`, in a transaction that holds no other lock. Raises what the
        job raised, or Unavailable if the database does not store it or it waits too long; a job that had started by
        then may still be stored.
        """
        with self._measure_write():
            ticket = write_jobs.PendingJob(job, alone=alone)
            if self._enqueue_or_claim(ticket, may_commit=self._callers_commit):
                try:
                    self._commit(lambda: [ticket])
                finally:
                    self._release_connection()
            try:
                return ticket.wait(self._timeout)
            finally:
                if ticket.abandoned:
                    self._end_silent_connection()

    async def write(self, job: write_jobs.WriteJob[T], *, alone: bool = False) -> T:
        """Run a job and return its result once it is on disk, as `run` does, without blocking the event loop.

        If the caller is cancelled, a job that has not started never runs.
        """
        loop = asyncio.get_running_loop()
        ticket = write_jobs.PendingAsyncJob(job, loop, alone=alone)
        self._enqueue_from_loop(ticket)
        timer = loop.call_later(self._timeout, ticket.expire, self._timeout)
        try:
            with self._measure_write():
                return await ticket.future
        except asyncio.CancelledError:
            ticket.abandoned = True
            raise
        finally:
            timer.cancel()
            if ticket.abandoned:
                self._end_silent_connection()

    def submit(self, job: write_jobs.WriteJob[T], *, alone: bool = False) -> Future[T]:
        """Queue a job and return its future, which has no time limit. Raises Unavailable after `close`."""
        ticket = write_jobs.PendingFutureJob(job, alone=alone)
        self._enqueue_or_claim(ticket, may_commit=False)
        return ticket.future

    @property
    def waiting_jobs(self) -> int:
        # Without the lock: a length is read at once, and an event loop that hands jobs over meanwhile changes nothing.
        return len(self._waiting)

    def close(self) -> None:
        """Refuse new jobs and wait until all queued ones are done."""
        with self._lock:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _enqueue_or_claim(self, ticket: write_jobs.PendingJob[Any], *, may_commit: bool) -> bool:
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

    def _enqueue_from_loop(self, ticket: write_jobs.PendingAsyncJob[Any]) -> None:
        """Queue a job with others of its loop, so that the thread is woken once for them."""
        # Read without the lock; `_hand_over` looks again, with it.
        if self._closed:
            raise stopping_error()
        loop = ticket.loop
        gathered = self._gathered.get(loop)
        if gathered is None:
            gathered = self._gathered[loop] = write_jobs.GatheredJobs(loop.time() + write_jobs.GATHER_SECONDS)
            loop.call_soon(self._gather, loop, gathered)
        gathered.jobs.append(ticket)

    def _gather(self, loop: asyncio.AbstractEventLoop, gathered: write_jobs.GatheredJobs) -> None:
        """Hand the jobs of a loop over, in this pass or a later one."""
        # A lone job does not wait. More than one at a time are seen by these signs, which need no lock: at worst a
        # transaction is a little smaller or later.
        is_alone = len(gathered.jobs) == 1 and self._last_count == 1 and not self._busy
        if not is_alone and gathered.expects_more(loop.time()):
            loop.call_soon(self._gather, loop, gathered)
            return
        del self._gathered[loop]
        self._last_count = len(gathered.jobs)
        self._hand_over(gathered.jobs)

    def _hand_over(self, jobs: Sequence[write_jobs.PendingAsyncJob[Any]]) -> None:
        with self._lock:
            if not self._closed:
                self._waiting += jobs
                if not self._busy:
                    self._changed.notify()
                return
        for ticket in jobs:
            ticket.fail(stopping_error())
            ticket.settle()

    def _release_connection(self) -> None:
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

    def _take_batch(self) -> list[write_jobs.PendingJob[Any]]:
        """Return the jobs of the next transaction, without those whose callers gave up."""
        with self._lock:
            count = batch_size(self._waiting)
            taken, self._waiting = self._waiting[:count], self._waiting[count:]
        return [ticket for ticket in taken if not ticket.abandoned]

    def _commit(self, take: Callable[[], list[write_jobs.PendingJob[Any]]]) -> None:
        """Run the jobs of a batch in one transaction and complete them."""
        batch: list[write_jobs.PendingJob[Any]] = []
        begun = 0.0
        commit_seconds: float | None = None
        try:
            with self._turn:
                # Taken only now: what arrived while other processes wrote is part of the transaction.
                batch = take()
                if batch:
                    begun = time.perf_counter()
                    commit_seconds = self._run_transaction(batch)
        except BaseException as error:  # noqa: BLE001 - the callers get it, and the thread must live
            # If waiting for the turn failed, nothing was taken yet, and the jobs would wait for ever.
            batch = batch or take()
            if not isinstance(error, DatabaseLost):
                self._failures.log(f"a transaction failed, and with it {len(batch)} jobs", error)
            # The connection may be in any state, and in the middle of a transaction.
            self._disconnect()
            for ticket in batch:
                # An interruption is for the caller that was interrupted while it did its own job.
                ticket.fail(unavailable_error(error) if isinstance(error, Exception) else error)
            if self._observer is not None:
                self._observer.observe_failure()
        complete_jobs(batch)
        # After the callers were woken, who need not wait for it.
        if self._observer is not None and commit_seconds is not None:
            self._observer.observe_commit(len(batch), time.perf_counter() - begun, commit_seconds)

    def _end_silent_connection(self) -> None:
        """End the connection of a transaction that takes too long, so that its thread fails and opens a new one."""
        began, unit_of_work = self._transaction_began, self._unit_of_work
        if began is not None and unit_of_work is not None and time.monotonic() - began > SILENT_SECONDS:
            # Without a lock: at worst it ends the connection of the next transaction, whose callers are told to repeat.
            logger.error("the database did not answer for %g seconds; its connection is ended", SILENT_SECONDS)
            unit_of_work.shut_down_connection()

    def _run_transaction(self, batch: list[write_jobs.PendingJob[Any]]) -> float | None:
        """Run a transaction and return how many seconds its commit took; None if there was nothing to commit."""
        unit_of_work = self._unit_of_work
        if unit_of_work is None:
            unit_of_work = self._unit_of_work = UnitOfWork(self._database.open_write_connection())
        self._transaction_began = time.monotonic()
        try:
            return self._run_jobs(batch, unit_of_work)
        finally:
            self._transaction_began = None
            # After a failure too, since a commit whose outcome is unknown may be on disk.
            unit_of_work.end()

    def _run_jobs(self, batch: list[write_jobs.PendingJob[Any]], unit_of_work: UnitOfWork) -> float | None:
        unit_of_work.begin()
        if self._files is not None:
            # Within the transaction, whose lock keeps other processes from writing to the log that is checked.
            self._files.check_log()
        groups = list(group_insertions(batch))
        if len(groups) > 1:
            for group in groups:
                self._run_in_savepoint(group, unit_of_work)
        elif not self._run(batch, unit_of_work):
            # Without other jobs to protect, the transaction itself is rolled back.
            unit_of_work.roll_back()
            if len(batch) == 1:
                return None
            unit_of_work.begin()
            self._run_each(batch, unit_of_work)
        begun = time.perf_counter()
        try:
            # A crash of this process or machine before this returns leaves all jobs or none of them on disk, and no
            # caller has been told of success. A caller that repeats its request finds what was stored.
            unit_of_work.commit()
        except SQLAlchemyError as error:
            raise error if is_certain_rollback(error) else CommitOutcomeUnknown from error
        commit_seconds = time.perf_counter() - begun
        if self._files is not None:
            # SQLite commits to files that it has open, whatever became of their names.
            self._files.check()
        return commit_seconds

    def _run_each(self, group: Sequence[write_jobs.PendingJob[Any]], unit_of_work: UnitOfWork) -> None:
        """Run the jobs of a failed group one by one, so that only those that fail are rolled back."""
        for ticket in group:
            self._run_in_savepoint([ticket], unit_of_work)

    def _run_in_savepoint(self, group: Sequence[write_jobs.PendingJob[Any]], unit_of_work: UnitOfWork) -> None:
        """Run the jobs of a group in a savepoint, so that an error rolls back no others.

        If the database ended the transaction itself, the rollback fails, and with it the whole batch.
        """
        unit_of_work.set_savepoint()
        succeeded = self._run(group, unit_of_work)
        if not succeeded:
            unit_of_work.roll_back_to_savepoint()
        unit_of_work.release_savepoint()
        if not succeeded and len(group) > 1:
            self._run_each(group, unit_of_work)

    def _run(self, group: Sequence[write_jobs.PendingJob[Any]], unit_of_work: UnitOfWork) -> bool:
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
                group[0].fail(caller_error(error, self._failures))
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


def batch_size(waiting: Sequence[write_jobs.PendingJob[Any]]) -> int:
    """Return how many of the first jobs run in one transaction."""
    if waiting[0].alone:
        return 1
    for position, ticket in enumerate(waiting):
        if ticket.alone or position == write_jobs.MAX_BATCH:
            return position
    return len(waiting)


def group_insertions(batch: Sequence[write_jobs.PendingJob[Any]]) -> Iterator[list[write_jobs.PendingJob[Any]]]:
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


def complete_jobs(batch: Sequence[write_jobs.PendingJob[Any]]) -> None:
    """Complete the jobs of a batch, waking each event loop among their callers once."""
    awaited: dict[asyncio.AbstractEventLoop, list[write_jobs.PendingAsyncJob[Any]]] = {}
    for ticket in batch:
        if isinstance(ticket, write_jobs.PendingAsyncJob):
            awaited.setdefault(ticket.loop, []).append(ticket)
        else:
            ticket.end()
    for loop, tickets in awaited.items():
        try:
            loop.call_soon_threadsafe(settle_async_jobs, tickets)
        except RuntimeError:
            # A loop that was closed has nobody left who waits.
            logger.warning("the event loop ended before it heard of its jobs: %d", len(tickets))


def settle_async_jobs(tickets: Sequence[write_jobs.PendingAsyncJob[Any]]) -> None:
    """Complete the futures of a batch; call it on their loop only."""
    for ticket in tickets:
        ticket.settle()


def stopping_error() -> Unavailable:
    """Return the error for a job that arrives after `close`."""
    return Unavailable("the server is stopping")
