"""Jobs that wait for the writer of the database, and those of an event loop that it does not have yet."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

from cstp_grpc.contract.errors import Unavailable
from cstp_grpc.platform.storage.database import REPEAT_IS_SAFE
from cstp_grpc.platform.storage.unit_of_work import UnitOfWork

T = TypeVar("T")
WriteJob = Callable[[UnitOfWork], T]

MAX_BATCH = 128
"""Maximum number of jobs in one transaction: the first of them waits for all others."""

QUIET_PASSES = 20
"""Passes of an event loop without a new job after which no more are waited for.

A call takes about six passes until it writes, and more if the threads of gRPC are late. Measured with 16 checks in
flight: with 20 passes most transactions hold all of them, with five they hold six; 30 change nothing. An idle loop
makes 20 in 50 us.
"""

GATHER_SECONDS = 0.01
"""Maximum time that a job waits for others while they keep coming. Measured: 16 checks are computed in 7 ms, and a
bound of 4 ms saves nothing."""


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
        # Taken here and released by the thread that ends the job, as Lock allows: an event that is set once.
        # What was written before the release, `_result` or `_error`, is seen after the acquisition in `wait`.
        self._ended = threading.Lock()
        self._ended.acquire()

    def run(self, unit_of_work: UnitOfWork) -> None:
        """Run the job and keep its result, which is valid once the transaction is committed."""
        self._result = self.job(unit_of_work)

    def fail(self, error: BaseException) -> None:
        self._error = error

    def end(self) -> None:
        self._ended.release()

    def wait(self, timeout: float) -> T:
        """Return the result or raise the error. Raises Unavailable after `timeout` seconds."""
        if not self._ended.acquire(timeout=timeout):
            # Set without a lock: a job that was taken a moment ago runs all the same, so it "may still be stored".
            self.abandoned = True
            raise timeout_error(timeout)
        return self.outcome()

    def outcome(self) -> T:
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


class GatheredJobs:
    """The jobs of an event loop that the writer does not have yet, and how many passes brought no more of them."""

    __slots__ = ("counted", "ends_at", "jobs", "quiet_passes")

    def __init__(self, ends_at: float) -> None:
        self.jobs: list[PendingAsyncJob[Any]] = []
        self.counted = 0
        self.quiet_passes = 0
        self.ends_at = ends_at
        """The time of the loop at which they are handed over at the latest."""

    def expects_more(self, now: float) -> bool:
        """Return whether to wait for another pass of the loop; call it once in each."""
        arrived, self.counted = len(self.jobs) - self.counted, len(self.jobs)
        self.quiet_passes = 0 if arrived else self.quiet_passes + 1
        return self.quiet_passes < QUIET_PASSES and self.counted < MAX_BATCH and now < self.ends_at


def timeout_error(timeout: float) -> Unavailable:
    return Unavailable(
        f"the record was not on disk after {timeout:g} seconds, and may still be stored; {REPEAT_IS_SAFE}"
    )
