"""Locks: on files, for one server on each data folder and one writing process at a time; by key, between threads."""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Final, Self


class AlreadyRunning(Exception):
    """Another process uses the data folder; the message contains its path, and the process if it is known."""


SHARER_WAIT_SECONDS: Final = 2.0
"""Seconds that a lock for one process alone waits for processes that share the folder. Chosen: commands without a
server need less."""
RETRY_SECONDS: Final = 0.02
"""Seconds between two attempts to lock a folder, for which the kernel has no wait with a limit."""
HOLDER_BYTES: Final = 24
"""The part of the lock file that names a holder: a process id, and blanks in place of an earlier, longer one."""


class DataDirLock:
    """A lock on a data folder that ends with the process holding it, even after a crash.

    It is held by one process alone, or by any number that take it `shared`. A child that inherits `fileno()` holds it
    too: the folder stays locked until both have ended. A process waits for `wait_seconds`. By default, it waits
    for shared locks only, to lock alone, since these are short-lived.
    """

    def __init__(self, data_dir: Path, *, shared: bool = False, wait_seconds: float | None = None) -> None:
        self._data_dir = data_dir
        self._shared = shared
        self._wait_seconds = wait_seconds
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Take the lock, creating the folder for its owner alone. Raises AlreadyRunning."""
        assert self._descriptor is None, "the lock is held already"
        self._data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        # The file is never removed: a process that opened it before would then hold a lock that nobody else sees.
        descriptor = open_lock_file(self._data_dir / "lock")
        try:
            self._lock(descriptor)
            # Read by those that are refused, who ask whether the process still exists: several that share the lock
            # write over each other, and one that is killed leaves its id.
            os.pwrite(descriptor, f"{os.getpid()}".ljust(HOLDER_BYTES).encode(), 0)
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor

    def _lock(self, descriptor: int) -> None:
        ends_at = None
        while not try_file_lock(descriptor, fcntl.LOCK_SH if self._shared else fcntl.LOCK_EX):
            if ends_at is None:
                ends_at = time.monotonic() + self._choose_wait(descriptor)
            if time.monotonic() >= ends_at:
                holder = read_holder(descriptor)
                by = "another cstp process" if holder is None else f"the cstp process {holder}"
                raise AlreadyRunning(f"{self._data_dir}: is in use by {by}")
            time.sleep(RETRY_SECONDS)

    def _choose_wait(self, descriptor: int) -> float:
        if self._wait_seconds is not None:
            return self._wait_seconds
        if self._shared or not try_file_lock(descriptor, fcntl.LOCK_SH):
            return 0.0
        # Those who hold it share it.
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        return SHARER_WAIT_SECONDS

    def fileno(self) -> int:
        """Return the descriptor that a child may inherit."""
        assert self._descriptor is not None, "the lock is not held"
        return self._descriptor

    def release(self) -> None:
        """Release the lock in this process; a child that inherited it keeps it."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def try_file_lock(descriptor: int, kind: int) -> bool:
    """Take a lock on an open file, shared or exclusive, and return whether no other lock prevents it."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def read_holder(descriptor: int) -> int | None:
    """Return the process that took the lock on a folder last, or None if it has ended or is unknown."""
    text = os.pread(descriptor, HOLDER_BYTES, 0).strip()
    if not text.isdigit():
        return None
    holder = int(text)
    try:
        os.kill(holder, 0)
    except PermissionError:
        # It exists, and belongs to somebody else.
        return holder
    except (ProcessLookupError, OverflowError):
        return None
    return holder


CLOSED: Final = -1
"""In the place of a descriptor that was closed, since its number may soon be that of another file."""


class ProcessWriteLock:
    """A lock that the writers of several processes hold for one transaction each, in turn.

    SQLite makes a process that finds the file locked sleep and retry at growing intervals, while others overtake it.
    Here the next writer waits in the kernel, which wakes it at once. The lock ends with its process, even after a
    crash.

    Only one thread at a time may enter. Entering blocks, so never enter on an event loop.
    """

    def __init__(self, path: Path) -> None:
        """Create the lock of all processes that use the same path, and two empty files next to it."""
        # Two locks, because the kernel need not hand `flock` to waiters in their order: a writer that releases one lock
        # and takes it again could overtake all others. Whoever waits for `writing` holds `next`, so the writer that has
        # just released `writing` must wait for `next` first, and is at best the one after.
        self._next = open_lock_file(path.with_name(f"{path.name}.next"))
        self._writing = open_lock_file(path.with_name(f"{path.name}.writing"))

    def __enter__(self) -> Self:
        # `flock` and not `lockf`: it belongs to the open file, so that two writers in one process, as in tests, exclude
        # each other too, and closing another descriptor of the file releases nothing.
        fcntl.flock(self._next, fcntl.LOCK_EX)
        try:
            fcntl.flock(self._writing, fcntl.LOCK_EX)
        finally:
            fcntl.flock(self._next, fcntl.LOCK_UN)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release the lock to the next writer."""
        fcntl.flock(self._writing, fcntl.LOCK_UN)

    def close(self) -> None:
        for descriptor in (self._next, self._writing):
            if descriptor != CLOSED:
                os.close(descriptor)
        self._next = self._writing = CLOSED


@contextmanager
def hold_file_lock(path: Path) -> Iterator[None]:
    """Hold a lock on a file for the block, waiting for other processes; the file and its folder are created."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = open_lock_file(path)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def try_path_lock(path: Path) -> Iterator[bool]:
    """Hold a lock on a file for the block, which is created; yield False if another process has it."""
    descriptor = open_lock_file(path)
    try:
        yield try_file_lock(descriptor, fcntl.LOCK_EX)
    finally:
        os.close(descriptor)


def open_lock_file(path: Path) -> int:
    """Open a lock file, creating it for its owner alone, and return its descriptor."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


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
