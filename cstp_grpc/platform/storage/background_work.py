"""Background threads, and the ports through which calls run blocking work off the event loop."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final, ParamSpec, Protocol, TypeVar

from sqlalchemy.exc import SQLAlchemyError

from cstp_grpc.contract.errors import CstpError

P = ParamSpec("P")
T = TypeVar("T")

WHEN_WOKEN: Final = threading.TIMEOUT_MAX
"""The pause of a `PeriodicTask` that runs only when woken."""


class RunBlocking(Protocol):
    """Runs a blocking function on a thread, in the context of the caller."""

    async def __call__(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run the function and return its result. Raises the errors of the function."""


class WorkPool(Protocol):
    """Runs the blocking work of one kind of calls, separately from other kinds."""

    async def run(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a function that may block on a thread and return its result, as `RunBlocking` does."""

    async def run_short(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a function that takes less than a millisecond on the event loop and return its result."""


class PeriodicTask:
    """Runs its work in a thread when started, when woken, and at intervals.

    It starts after `delay` seconds; `work` returns the seconds until its next run, or None for `interval`. An error is
    logged once, after `complaint`, until the work succeeds again; meanwhile it runs every `interval` seconds.
    """

    def __init__(
        self,
        name: str,
        work: Callable[[], float | None],
        interval: float,
        logger: logging.Logger,
        complaint: str,
        *,
        delay: float = 0.0,
    ) -> None:
        self._work = work
        self._interval = interval
        self._logger = logger
        self._complaint = complaint
        self._delay = delay
        self._failing = False
        self._stopping = threading.Event()
        self._woken = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        """Run the work soon; if it is running, once more afterwards."""
        self._woken.set()

    def stop(self) -> None:
        """Stop the thread, and wait for work in progress."""
        self._stopping.set()
        self._woken.set()
        if self._thread.is_alive():
            self._thread.join()

    def is_stopping(self) -> bool:
        """Return True if the thread is stopping, so that long work can end early."""
        return self._stopping.is_set()

    def _run(self) -> None:
        self._woken.wait(self._delay)
        while not self._stopping.is_set():
            self._woken.clear()
            pause = self._attempt()
            self._woken.wait(pause)

    def _attempt(self) -> float:
        try:
            pause = self._work()
        except (CstpError, SQLAlchemyError) as error:
            if not self._failing:
                # The cause, because callers must not see the message of a driver, and operators need it.
                self._logger.warning("%s: %s", self._complaint, error.__cause__ or error)
        except Exception:
            # No error may prevent the next runs.
            if not self._failing:
                self._logger.exception(self._complaint)
        else:
            self._failing = False
            return self._interval if pause is None else pause
        self._failing = True
        return self._interval


class ExpiryTask(PeriodicTask):
    """Removes expired rows in a thread, batch by batch, so that other jobs of the writer run in between.

    `remove_batch` returns whether more may have expired; if not, it is called again after `interval` seconds.
    """

    def __init__(
        self, name: str, remove_batch: Callable[[], bool], interval: float, logger: logging.Logger, complaint: str
    ) -> None:
        super().__init__(name, lambda: 0.0 if remove_batch() else interval, interval, logger, complaint)
