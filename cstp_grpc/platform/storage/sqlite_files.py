"""Detects that the files of a SQLite database were removed, replaced or truncated while in use.

SQLite continues to use the files it has opened, whatever happens to their names, so it would acknowledge writes that
nobody can ever read again. The format of the wal-index and of the log is described at
https://sqlite.org/walformat.html.
"""

from __future__ import annotations

import errno
import logging
import mmap
import os
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NamedTuple

from sqlalchemy.exc import SQLAlchemyError

from cstp_grpc.platform.storage.background_work import WHEN_WOKEN, PeriodicTask

logger = logging.getLogger(__name__)

WAL_INDEX_HEADER: Final = struct.Struct("=12xBxHI12x8s8x")
"""The wal-index header (WalIndexHdr): whether it is initialized, page size, last frame, and the salts of the log."""
CHECKPOINT_INFO: Final = struct.Struct("=96xI28xI4x")
"""After the two copies of the header (WalCkptInfo): how many frames a checkpoint has written to the database, and how
many it has begun to write.
"""
INDEX_BYTES: Final = CHECKPOINT_INFO.size
LARGEST_PAGE: Final = 65_536
"""The largest page size of SQLite, which is stored as 1."""

# The log's own layout, from "The WAL File" of the same document: a header, and before each page a frame header; both
# hold the salts, which change whenever the log is restarted.
LOG_HEADER_BYTES: Final = 32
LOG_SALTS: Final = slice(16, 24)
FRAME_HEADER_BYTES: Final = 24
FRAME_SALTS: Final = slice(8, 16)


class WalIndex(NamedTuple):
    """The contents of the shared memory of a write-ahead log.

    A tuple, because two are made in every commit, and making a frozen dataclass takes three times as long.
    """

    page_size: int
    last_frame: int
    salts: bytes
    backfilled: int
    backfilling: int

    def offset_after(self, frames: int) -> int:
        """Return the offset of the frame after the first `frames` ones: that of the last is the size of the log."""
        return LOG_HEADER_BYTES + frames * (FRAME_HEADER_BYTES + self.page_size)

    def same_database(self, other: WalIndex) -> bool:
        """Return True if no checkpoint changed the database between two readings."""
        return (
            self.salts == other.salts and self.backfilled == self.backfilling == other.backfilled == other.backfilling
        )


def parse_wal_index(content: bytes) -> WalIndex | None:
    """Return the wal-index, or None if it is being written."""
    # SQLite writes the second copy of the header first, so that equal ones are from one commit.
    header = content[: WAL_INDEX_HEADER.size]
    # A writer updates the second copy, then the first, without a lock that readers know: only equal ones are valid.
    if header != content[WAL_INDEX_HEADER.size : 2 * WAL_INDEX_HEADER.size]:
        return None
    initialized, page_size, last_frame, salts = WAL_INDEX_HEADER.unpack(header)
    if not initialized:
        return None
    backfilled, backfilling = CHECKPOINT_INFO.unpack(content)
    # The largest page size does not fit into 16 bits, and is written as 1.
    return WalIndex(LARGEST_PAGE if page_size == 1 else page_size, last_frame, salts, backfilled, backfilling)


UNUSED_SECONDS: Final = 2.0
"""How long a file is held after its last connection, which takes a moment to close. Too short would be dangerous (see
`HeldFile`), too long only keeps a descriptor.
"""

FileIdentity = tuple[int, int]
"""A file's device and inode."""


class HeldFile:
    """A database file that stays open for reading as long as SQLite may hold locks on it.

    POSIX releases all locks of a process on a file when any of its descriptors is closed: SQLite's locks too, without
    its knowledge (https://sqlite.org/howtocorrupt.html, 2.2). So the file is closed only some time after its last
    connection.
    """

    def __init__(self, path: str) -> None:
        self.descriptor = os.open(path, os.O_RDONLY)
        self.users = 0
        self.unused_since = 0.0
        self._map: mmap.mmap | None = None

    def read_mapped(self, count: int) -> bytes:
        """Return the first bytes of a file that is never shortened, without a system call."""
        # The same memory that SQLite's writers of all processes share, so it shows every commit at once.
        if self._map is None:
            self._map = mmap.mmap(self.descriptor, count, access=mmap.ACCESS_READ)
        return self._map[:count]

    def close(self) -> None:
        if self._map is not None:
            self._map.close()
        os.close(self.descriptor)


class HeldFiles:
    """The open database files of this process, one per inode, shared by all engines."""

    def __init__(self) -> None:
        self._files: dict[FileIdentity, HeldFile] = {}
        # Held while a file is opened, too: a second descriptor on the same inode, once closed, would take the locks of
        # SQLite away.
        self._lock = threading.Lock()

    def hold(self, path: str) -> tuple[FileIdentity, HeldFile]:
        """Open the file at a path, or reuse it, and count a user. Raises OSError."""
        with self._lock:
            self._close_unused()
            identity = file_identity(os.stat(path))  # noqa: PTH116
            held = self._files.get(identity)
            if held is None:
                held = HeldFile(path)
                # Asked again of the open file: the path may have come to name another one since.
                identity = file_identity(os.fstat(held.descriptor))
                held = self._files.setdefault(identity, held)
            held.users += 1
            return identity, held

    def release(self, held: HeldFile) -> None:
        """Drop a user of a file; it is closed later."""
        with self._lock:
            held.users -= 1
            held.unused_since = time.monotonic()

    def _close_unused(self) -> None:
        before = time.monotonic() - UNUSED_SECONDS
        for identity, held in list(self._files.items()):
            if held.users == 0 and held.unused_since < before:
                del self._files[identity]
                held.close()


# One for the process and not for each engine, since POSIX counts locks by process.
HELD_FILES: Final = HeldFiles()


def file_identity(status: os.stat_result) -> FileIdentity:
    return status.st_dev, status.st_ino


MISSING_FILE_ERRNOS: Final = {errno.ENOENT, errno.ENOTDIR, errno.ESTALE}
"""Errors that say that a file does not exist any more."""
# From https://sqlite.org/fileformat2.html#the_database_header.
DATABASE_HEADER_BYTES: Final = 100
DATABASE_MAGIC: Final = b"SQLite format 3\0"
STABLE_ATTEMPTS: Final = 20
"""How often the wal-index is read again because another process commits at that moment."""
WATCH_SECONDS: Final = 0.5
"""How often the files are checked if nothing is written, so that reads from lost files end soon."""


class DatabaseLost(SQLAlchemyError):
    """The database's files were removed or replaced; callers may see the message."""

    def __init__(self) -> None:
        super().__init__("the database's file was removed or replaced while in use; the server must be restarted")


class DatabaseNotVisible(SQLAlchemyError):
    """The operating system does not allow the database's files to be inspected."""


class OpenDatabaseFiles:
    """The files of a database as they were when the first connection opened them."""

    def __init__(self, path: str) -> None:
        """Open the same files as SQLite did. Raises OSError."""
        self._database_path, self._log_path, self._index_path = path, f"{path}-wal", f"{path}-shm"
        self._database, self._held_database = HELD_FILES.hold(self._database_path)
        self._index, self._held_index = HELD_FILES.hold(self._index_path)
        # SQLite has no locks on the log, so it may be closed at any time.
        self._log_descriptor = os.open(self._log_path, os.O_RDONLY)
        self._log = file_identity(os.fstat(self._log_descriptor))
        self._seen: tuple[bytes, int] | None = None
        """The salts of the log when it was looked at last, and its last frame then."""
        self._header: tuple[WalIndex, bytes, int] | None = None
        """The header and size of the database when they were looked at last."""

    def close(self) -> None:
        """Release the files once SQLite has closed them or is about to."""
        HELD_FILES.release(self._held_database)
        HELD_FILES.release(self._held_index)
        os.close(self._log_descriptor)

    def find_short_log(self) -> str | None:
        """Return an error text if the log is shorter than its index says, else None. Raises OSError.

        Call it right before a commit, which would otherwise fill the gap.
        """
        for _ in range(STABLE_ATTEMPTS):
            index = self._read_index()
            if index is None:
                continue
            size = os.lseek(self._log_descriptor, 0, os.SEEK_END)
            if not index.last_frame or size >= index.offset_after(index.last_frame):
                return None
            # Another process may have restarted the log in between, and then the index has changed.
            if self._read_index() == index:
                return "the write-ahead log was truncated"
        return None

    def find_loss(self) -> str | None:
        """Return an error text if the files were lost, else None. Raises OSError if they cannot be inspected."""
        try:
            database = os.stat(self._database_path)  # noqa: PTH116 - a third of the time of Path.stat
            for attempt in range(1 + STABLE_ATTEMPTS):
                index = self._read_index() if attempt < STABLE_ATTEMPTS else None
                if index is None and attempt < STABLE_ATTEMPTS:
                    continue
                log = os.stat(self._log_path)  # noqa: PTH116
                loss = self._compare(database, log, index)
                if loss is None or index is None or self._read_index() == index:
                    return loss
        except OSError as error:
            if error.errno in MISSING_FILE_ERRNOS:
                return f"{error.filename} is gone"
            raise
        # Others commit all the time; they check their own writes.
        return None

    def find_slow_loss(self) -> str | None:
        """Return an error text if the files were lost, with checks too slow for every commit. Raises OSError."""
        loss = self.find_loss()
        if loss is not None:
            return loss
        try:
            if file_identity(os.stat(self._index_path)) != self._index:  # noqa: PTH116
                return "the shared memory of the database was replaced"
        except FileNotFoundError as error:
            return f"{error.filename} is gone"
        return self._compare_header()

    def _compare(self, database: os.stat_result, log: os.stat_result, index: WalIndex | None) -> str | None:
        if file_identity(database) != self._database:
            return "the database is another file"
        if file_identity(log) != self._log:
            return "the write-ahead log is another file"
        if database.st_size < DATABASE_HEADER_BYTES:
            return "the database was truncated"
        if index is None or index.last_frame == 0:
            # There is nothing in the log, or it is being restarted.
            return None
        if log.st_size < index.offset_after(index.last_frame):
            return "the write-ahead log was truncated"
        if self._salts_in_log(index) != index.salts:
            return "the write-ahead log was overwritten"
        self._seen = (index.salts, index.last_frame)
        return None

    def _salts_in_log(self, index: WalIndex) -> bytes:
        """Return the salts at the last frame seen, else those of the log's header.

        If the log was truncated and written to since, it has a hole where that frame was.
        """
        if self._seen is not None and self._seen[0] == index.salts and self._seen[1] <= index.last_frame:
            offset = index.offset_after(self._seen[1] - 1)
            return os.pread(self._log_descriptor, FRAME_HEADER_BYTES, offset)[FRAME_SALTS]
        return os.pread(self._log_descriptor, LOG_HEADER_BYTES, 0)[LOG_SALTS]

    def _compare_header(self) -> str | None:
        """Compare the database's header with the last one, unless a checkpoint may have changed it since."""
        before = self._read_index()
        header = os.pread(self._held_database.descriptor, DATABASE_HEADER_BYTES, 0)
        size = os.fstat(self._held_database.descriptor).st_size
        after = self._read_index()
        if before is None or after is None or not before.same_database(after):
            self._header = None
            return None
        if not header.startswith(DATABASE_MAGIC):
            return "the database was overwritten"
        known, self._header = self._header, (after, header, size)
        if known is not None and known[0].same_database(before) and known[1:] != (header, size):
            return "the database was overwritten"
        return None

    def _read_index(self) -> WalIndex | None:
        return parse_wal_index(self._held_index.read_mapped(INDEX_BYTES))


class DatabaseFiles:
    """Checks the files of a database for all connections of an engine.

    Once the files are lost, every later check fails: open connections and the files on disk have diverged.
    """

    def __init__(self) -> None:
        # Guards all fields, and keeps the descriptors open during a check. Listeners are called without it, because
        # they may stop the server, which closes connections.
        self._lock = threading.Lock()
        self._files: OpenDatabaseFiles | None = None
        self._connections = 0
        self._lost = False
        self._listeners: list[Callable[[], object]] = []

    @property
    def is_lost(self) -> bool:
        return self._lost

    def on_loss(self, listener: Callable[[], object]) -> None:
        """Register a function that the detecting thread calls when the files are lost."""
        self._listeners.append(listener)

    def register_connection(self, path: str) -> None:
        """Count a new connection to the files. Raises DatabaseLost and DatabaseNotVisible."""
        with self._lock:
            self._connections += 1
            if self._files is None:
                try:
                    self._files = OpenDatabaseFiles(path)
                except OSError as error:
                    raise DatabaseNotVisible(str(error)) from error
        self.check()

    def unregister_connection(self) -> None:
        """Count a connection that closes; the last one may remove the log, and the next creates a new one."""
        with self._lock:
            self._connections -= 1
            if self._connections == 0 and self._files is not None:
                self._files.close()
                self._files = None

    def check(self) -> None:
        """Check that the files are the ones that were opened. Raises DatabaseLost and DatabaseNotVisible."""
        self._check(OpenDatabaseFiles.find_loss)

    def check_log(self) -> None:
        """Check that the log is complete. Raises DatabaseLost and DatabaseNotVisible."""
        self._check(OpenDatabaseFiles.find_short_log)

    def check_thoroughly(self) -> None:
        """Run the slow checks too. Raises DatabaseLost and DatabaseNotVisible."""
        self._check(OpenDatabaseFiles.find_slow_loss)

    def refuse_if_lost(self) -> None:
        """Raise DatabaseLost if a loss of the files was detected."""
        # Needs no lock: it never becomes false again.
        if self._lost:
            raise DatabaseLost

    def _check(self, find_loss: Callable[[OpenDatabaseFiles], str | None]) -> None:
        with self._lock:
            if self._lost:
                raise DatabaseLost
            try:
                loss = None if self._files is None else find_loss(self._files)
            except OSError as error:
                raise DatabaseNotVisible(str(error)) from error
            # Only here, under the lock, so that one thread alone reports the loss.
            self._lost = loss is not None
        if loss is None:
            return
        lost = DatabaseLost()
        logger.critical("%s (%s); nothing is stored any more", lost, loss)
        for listener in self._listeners:
            with suppress(Exception):
                listener()
        raise lost


class DatabaseFileWatch(PeriodicTask):
    """Checks the files of a database regularly, so that a loss is detected even without writes."""

    def __init__(self, files: DatabaseFiles, interval: float = WATCH_SECONDS) -> None:
        self._files = files
        complaint = "the files of the database cannot be looked at"
        super().__init__("files", self._check, interval, logger, complaint, delay=interval)

    def _check(self) -> float | None:
        try:
            self._files.check_thoroughly()
        except DatabaseLost:
            # They stay lost, and the log has it already.
            return WHEN_WOKEN
        return None
