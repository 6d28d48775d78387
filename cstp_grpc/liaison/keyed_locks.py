"""Locks by key, which let one of several identical calls go first."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterator
from contextlib import contextmanager


class KeyedLocks:
    """A lock for each key, which exists while somebody holds or wants it."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._locks: dict[Hashable, tuple[threading.Lock, int]] = {}

    @contextmanager
    def holding(self, key: Hashable) -> Iterator[bool]:
        """Hold the lock of a key for the block; yield True if another caller held it first."""
        with self._guard:
            lock, wanted = self._locks.get(key, (threading.Lock(), 0))
            self._locks[key] = lock, wanted + 1
        waited = wanted > 0
        try:
            with lock:
                yield waited
        finally:
            with self._guard:
                lock, wanted = self._locks[key]
                if wanted == 1:
                    del self._locks[key]
                else:
                    self._locks[key] = lock, wanted - 1
