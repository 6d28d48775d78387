"""Rate limits in moving windows, in memory that several processes may share."""

from __future__ import annotations

import fcntl
import mmap
import os
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Final

VALUE_BYTES: Final = 8
LOCK_ATTEMPTS: Final = 40
"""Attempts to lock a window that another process is changing, which takes it microseconds."""
RETRY_PAUSE: Final = 0.00005
"""Seconds between two attempts. A process that is suspended while it holds the lock must not block the others for
long.
"""


class MovingWindows:
    """Admits a limited number of calls in any window of time; a window is a ring of the times of the last calls.

    Memory is used only for windows with calls. With a `descriptor` of `create_shared_memory` all processes that have
    it share the windows; a process that dies leaves them usable. Thread-safe.
    """

    def __init__(self, values: int, descriptor: int | None = None, clock: Callable[[], float] = time.time) -> None:
        """Allocate windows of `values` numbers in total, see `window_value_count`."""
        self._descriptor = descriptor
        self._clock = clock
        self._lock = threading.Lock()
        opened = create_shared_memory() if descriptor is None else descriptor
        try:
            os.ftruncate(opened, max(values, 1) * VALUE_BYTES)
            self._values = memoryview(mmap.mmap(opened, max(values, 1) * VALUE_BYTES)).cast("d")
        finally:
            if descriptor is None:
                os.close(opened)

    def take(self, start: int, most: int, seconds: float) -> float | None:
        """Count a call if fewer than `most` were counted in the last `seconds`.

        `start` is the offset of the window, the same each time. Returns None if the call is admitted, else the time
        from which it would be.
        """
        with self._lock:
            if self._descriptor is None:
                return self._take(start, most, seconds)
            # Without it, where another process does not let go of the window, a call may be counted too little.
            locked = self._try_lock(self._descriptor, start * VALUE_BYTES)
            try:
                return self._take(start, most, seconds)
            finally:
                if locked:
                    fcntl.lockf(self._descriptor, fcntl.LOCK_UN, 1, start * VALUE_BYTES)

    def _take(self, start: int, most: int, seconds: float) -> float | None:
        values = self._values
        now = self._clock()
        place = int(values[start])
        oldest = values[start + 1 + place]
        if oldest >= now - seconds:
            return oldest + seconds
        # In this order a process that dies in between leaves a call uncounted, not a window that looks full.
        values[start] = (place + 1) % most
        values[start + 1 + place] = now
        return None

    @staticmethod
    def _try_lock(descriptor: int, offset: int) -> bool:
        for _ in range(LOCK_ATTEMPTS):
            try:
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, offset)
            except OSError:
                time.sleep(RETRY_PAUSE)
            else:
                return True
        return False


def window_value_count(most: int) -> int:
    """Return the count of numbers in a window of at most `most` calls."""
    return most + 1


def create_shared_memory() -> int:
    """Return a descriptor of anonymous memory, which is freed when the last process that has it ends."""
    if create := getattr(os, "memfd_create", None):
        return int(create("cstp-windows"))
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
