"""Files of SQLite databases that are open for reading beside SQLite."""

from __future__ import annotations

import mmap
import os
import threading
import time
from typing import Final

UNUSED_SECONDS: Final = 2.0
"""How long a file is held after its last connection, which takes a moment to close."""

Identity = tuple[int, int]
"""A file's device and inode."""


class HeldFile:
    """A file of the database that is open for reading as long as SQLite may have locks on it.

    POSIX takes all of a process's locks on a file away as soon as any of its descriptors is closed, so a file is closed
    only some time after its last connection.
    """

    def __init__(self, path: str) -> None:
        self.descriptor = os.open(path, os.O_RDONLY)
        self.users = 0
        self.unused_since = 0.0
        self._map: mmap.mmap | None = None

    def read_mapped(self, count: int) -> bytes:
        """Read the first bytes of a file that is never shortened, without a system call."""
        if self._map is None:
            self._map = mmap.mmap(self.descriptor, count, access=mmap.ACCESS_READ)
        return self._map[:count]

    def close(self) -> None:
        """Close the file."""
        if self._map is not None:
            self._map.close()
        os.close(self.descriptor)


class HeldFiles:
    """The held files of this process, one for each inode, however many engines use it."""

    def __init__(self) -> None:
        self._files: dict[Identity, HeldFile] = {}
        self._lock = threading.Lock()

    def hold(self, path: str) -> tuple[Identity, HeldFile]:
        """Return the file that a path names now. Raises OSError."""
        with self._lock:
            self._close_unused()
            identity = identity_of(os.stat(path))  # noqa: PTH116
            held = self._files.get(identity)
            if held is None:
                held = HeldFile(path)
                identity = identity_of(os.fstat(held.descriptor))
                held = self._files.setdefault(identity, held)
            held.users += 1
            return identity, held

    def release(self, held: HeldFile) -> None:
        """Give a file up; it is closed later."""
        with self._lock:
            held.users -= 1
            held.unused_since = time.monotonic()

    def _close_unused(self) -> None:
        before = time.monotonic() - UNUSED_SECONDS
        for identity, held in list(self._files.items()):
            if held.users == 0 and held.unused_since < before:
                del self._files[identity]
                held.close()


HELD: Final = HeldFiles()


def identity_of(status: os.stat_result) -> Identity:
    """Return which file it is that a status was read of."""
    return status.st_dev, status.st_ino
