"""Leaving a peer alone that keeps failing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

TRIAL_SECONDS: Final = 60.0
"""After how long a trial that nobody told the end of is taken for lost."""


class CircuitBreaker:
    """Says whether a peer is asked: not for `seconds` after `failures` in a row, and then by one trial at a time.

    Each call that was admitted is followed by one of `succeeded`, `failed` and `abandoned`. Safe for many threads.
    """

    def __init__(self, failures: int, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._threshold = failures
        self._seconds = seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._failures = 0
        self._retry_at: float | None = None
        self._trial_until: float | None = None

    def admits(self) -> bool:
        """Return whether the peer may be asked now; once it was left alone for long enough, the first is the trial."""
        with self._lock:
            if self._retry_at is None:
                return True
            now = self._clock()
            if now < self._retry_at or (self._trial_until is not None and now < self._trial_until):
                return False
            self._trial_until = now + TRIAL_SECONDS
            return True

    def succeeded(self) -> None:
        """Note that the peer answered: it is asked as usual."""
        with self._lock:
            self._failures = 0
            self._retry_at = self._trial_until = None

    def failed(self) -> None:
        """Note that the peer did not answer."""
        with self._lock:
            self._failures += 1
            self._trial_until = None
            if self._failures >= self._threshold:
                self._retry_at = self._clock() + self._seconds

    def abandoned(self) -> None:
        """Note that nobody waited long enough to tell; another trial may follow."""
        with self._lock:
            self._trial_until = None
