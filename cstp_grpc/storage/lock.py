"""One server for each data folder."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from types import TracebackType
from typing import Self


class AlreadyRunning(Exception):
    """Another process uses the data folder; the message names it."""


class DataLock:
    """An exclusive lock on a data folder, which ends with the process that holds it, however that ends.

    A child that inherits `fileno()` holds it too: the folder stays locked until both have ended.
    """

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Take the lock at once; the folder is created, for its owner alone. Raises AlreadyRunning."""
        assert self._descriptor is None, "the lock is held already"
        self._data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(self._data_dir / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise AlreadyRunning(f"{self._data_dir}: is in use by another cstp process") from None
        except OSError:
            os.close(descriptor)
            raise
        self._descriptor = descriptor

    def fileno(self) -> int:
        """Return the descriptor that a child may inherit."""
        assert self._descriptor is not None, "the lock is not held"
        return self._descriptor

    def release(self) -> None:
        """Give up our hold; that of a child stays."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> Self:
        """Take the lock. Raises AlreadyRunning."""
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give up the lock."""
        self.release()
