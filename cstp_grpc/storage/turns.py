"""Writing in turns with the other processes of this host."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from types import TracebackType
from typing import Final, Self

CLOSED: Final = -1
"""In the place of a descriptor that was closed, since its number may soon be that of another file."""


class WriteTurn:
    """A lock that the writers of several processes hold for one transaction each, in turns.

    SQLite lets who finds the file locked sleep and try again, ever longer, while others pass by. Here the next writer
    waits in the kernel, which wakes it at once. A lock ends with its process, however that ends.

    One thread at a time may enter. Entering blocks, so no event loop may.
    """

    def __init__(self, path: Path) -> None:
        """Prepare to take turns with all who name the same path, beside which two empty files are made."""
        # Whoever waits for `writing` holds `next`, so that who just wrote comes after it and never passes by.
        self._next = open_lock(path.with_name(f"{path.name}.next"))
        self._writing = open_lock(path.with_name(f"{path.name}.writing"))

    def __enter__(self) -> Self:
        """Wait until it is our turn."""
        fcntl.flock(self._next, fcntl.LOCK_EX)
        try:
            fcntl.flock(self._writing, fcntl.LOCK_EX)
        finally:
            fcntl.flock(self._next, fcntl.LOCK_UN)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let the next one write."""
        fcntl.flock(self._writing, fcntl.LOCK_UN)

    def close(self) -> None:
        """Give the files back; who enters after that gets OSError."""
        for descriptor in (self._next, self._writing):
            if descriptor != CLOSED:
                os.close(descriptor)
        self._next = self._writing = CLOSED


def open_lock(path: Path) -> int:
    """Return a descriptor of a file to lock, which is made for its owner alone."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
