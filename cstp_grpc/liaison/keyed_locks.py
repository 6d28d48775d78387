"""Locks by key, which let one of several identical calls go first."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterator
from contextlib import contextmanager


class KeyedLocks:
    """A lock for each key, which exists while a thread holds it or waits for it."""

    def __init__(self) -> None:
        # Guards the dict. Held only to count, never while a key's lock is waited for.
        self._guard = threading.Lock()
        self._locks: dict[Hashable, tuple[threading.Lock, int]] = {}
        """The lock of each key, and the number of threads that hold it or wait for it."""

    @contextmanager
    def holding(self, key: Hashable) -> Iterator[bool]:
        """Hold the lock of a key for the block; yield True if another caller held it first."""
        with self._guard:
            lock, users = self._locks.get(key, (threading.Lock(), 0))
            self._locks[key] = lock, users + 1
        waited = users > 0
        try:
            with lock:
                yield waited
        finally:
            with self._guard:
                # Counted under the guard: a lock is removed only if no thread has it in hand, or two threads could hold
                # different locks of one key.
                lock, users = self._locks[key]
                if users == 1:
                    del self._locks[key]
                else:
                    self._locks[key] = lock, users - 1
