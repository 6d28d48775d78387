"""Letting one of several identical calls go first."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class KeyedLocks:
    """A lock for each key, which is there as long as somebody wants it."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._locks: dict[str, tuple[threading.Lock, int]] = {}

    @contextmanager
    def holding(self, key: str) -> Iterator[None]:
        """Hold the lock of a key for the length of a block."""
        with self._guard:
            lock, wanted = self._locks.get(key, (threading.Lock(), 0))
            self._locks[key] = lock, wanted + 1
        try:
            with lock:
                yield
        finally:
            with self._guard:
                lock, wanted = self._locks[key]
                if wanted == 1:
                    del self._locks[key]
                else:
                    self._locks[key] = lock, wanted - 1
