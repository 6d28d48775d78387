"""Counting calls in moving windows, in memory that several processes may share."""

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
ATTEMPTS: Final = 40
"""How often a window is tried that another process is about to change, which takes it microseconds."""
PAUSE: Final = 0.00005
"""Seconds between two attempts. A process that was stopped at that moment must not stop all others for long."""


class MovingWindows:
    """Admits at most so many calls in any window of time; a window is a ring of the instants of the last calls.

    Memory is used as far as calls were counted. With a `descriptor` of `create_shared_memory` the windows are those of
    all processes that were given it; whoever dies leaves them usable. Safe for many threads.
    """

    def __init__(self, values: int, descriptor: int | None = None, clock: Callable[[], float] = time.time) -> None:
        """Prepare for windows of `values` numbers in all, see `values_of`."""
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

        `start` is where the window lies, the same each time. Returns None, or the instant from which a call would be
        admitted if this one is not.
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
        for _ in range(ATTEMPTS):
            try:
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, offset)
            except OSError:
                time.sleep(PAUSE)
            else:
                return True
        return False


def values_of(most: int) -> int:
    """Return how many numbers a window of at most so many calls takes."""
    return most + 1


def create_shared_memory() -> int:
    """Return a descriptor of memory without a name, which is gone when the last process that has it ends."""
    if create := getattr(os, "memfd_create", None):
        return int(create("cstp-windows"))
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
