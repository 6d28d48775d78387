"""Work that is done again and again in a thread of its own."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from sqlalchemy.exc import SQLAlchemyError

from cstp_grpc.errors import CstpError


class Periodic:
    """Does its work when it is started, whenever it is woken, and every now and then.

    It begins after `delay` seconds; `work` returns in how many it is due again, None where not before it is woken. What
    it raises is logged once, after `complaint`, until it succeeds again; meanwhile it is due every `interval` seconds.
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
        """Begin."""
        self._thread.start()

    def wake(self) -> None:
        """Have the work done soon; where it is being done, once more."""
        self._woken.set()

    def stop(self) -> None:
        """End, and wait for work that is being done."""
        self._stopping.set()
        self._woken.set()
        if self._thread.is_alive():
            self._thread.join()

    def is_stopping(self) -> bool:
        """Whether it is to end, so that long work may end early."""
        return self._stopping.is_set()

    def _run(self) -> None:
        self._woken.wait(self._delay)
        while not self._stopping.is_set():
            self._woken.clear()
            pause = self._attempt()
            self._woken.wait(pause)

    def _attempt(self) -> float | None:
        try:
            pause = self._work()
        except (CstpError, SQLAlchemyError) as error:
            if not self._failing:
                self._logger.warning("%s: %s", self._complaint, error)
        except Exception:
            # Whatever it is, it must not keep what is to come from being done.
            if not self._failing:
                self._logger.exception(self._complaint)
        else:
            self._failing = False
            return pause
        self._failing = True
        return self._interval
