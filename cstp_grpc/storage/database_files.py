"""Noticing that the files of a SQLite database were removed, replaced or truncated while they are in use.

SQLite goes on with the files that it has open, whatever becomes of their names, so that it would acknowledge what
nobody will ever read again.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final

from sqlalchemy.exc import SQLAlchemyError

from cstp_grpc.storage.held_files import HELD, identity_of
from cstp_grpc.storage.periodic import Periodic
from cstp_grpc.storage.wal_index import (
    FRAME_HEADER_BYTES,
    FRAME_SALTS,
    INDEX_BYTES,
    LOG_HEADER_BYTES,
    LOG_SALTS,
    WalIndex,
    read_index,
)

logger = logging.getLogger(__name__)

GONE: Final = {errno.ENOENT, errno.ENOTDIR, errno.ESTALE}
"""Errors that say that a file does not exist any more."""
DATABASE_HEADER_BYTES: Final = 100
DATABASE_MAGIC: Final = b"SQLite format 3\0"
STABLE_ATTEMPTS: Final = 20
"""How often the wal-index is read again because another process commits at that moment."""
WATCH_SECONDS: Final = 0.5
"""How often the files are looked at if nothing is written."""


class DatabaseLost(SQLAlchemyError):
    """The database's files are not those that were opened; the message is fit for callers."""

    def __init__(self) -> None:
        super().__init__("the database's file was removed or replaced while in use; the server must be restarted")


class DatabaseNotVisible(SQLAlchemyError):
    """The operating system does not let us look at the database's files."""


class OpenFiles:
    """The files of a database as they were when a first connection had opened them."""

    def __init__(self, path: str) -> None:
        """Open the files beside SQLite. Raises OSError."""
        self._database_path, self._log_path, self._index_path = path, f"{path}-wal", f"{path}-shm"
        self._database, self._held_database = HELD.hold(self._database_path)
        self._index, self._held_index = HELD.hold(self._index_path)
        # SQLite has no locks on the log, so it may be closed at any time.
        self._log_descriptor = os.open(self._log_path, os.O_RDONLY)
        self._log = identity_of(os.fstat(self._log_descriptor))
        self._seen: tuple[bytes, int] | None = None
        """The salts of the log when it was looked at last, and its last frame then."""
        self._header: tuple[WalIndex, bytes, int] | None = None
        """The header and size of the database when they were looked at last."""

    def close(self) -> None:
        """Give the files up, once SQLite has closed them or will."""
        HELD.release(self._held_database)
        HELD.release(self._held_index)
        os.close(self._log_descriptor)

    def find_short_log(self) -> str | None:
        """Return what is wrong if the log lacks what is in it. Raises OSError if it cannot be seen.

        It is for the moment before a commit, which would fill the gap up.
        """
        for index in self._stable_indexes():
            size = os.lseek(self._log_descriptor, 0, os.SEEK_END)
            if index is None or size >= index.size:
                return None
            if self._read_index() == index:
                return "the write-ahead log was truncated"
        return None

    def find_loss(self) -> str | None:
        """Return what is wrong with the files, or None. Raises OSError if it cannot be seen."""
        try:
            database = os.stat(self._database_path)  # noqa: PTH116 - a third of the time of Path.stat
            for index in self._stable_indexes():
                log = os.stat(self._log_path)  # noqa: PTH116
                loss = self._compare(database, log, index)
                if loss is None or index is None or self._read_index() == index:
                    return loss
        except OSError as error:
            if error.errno in GONE:
                return f"{error.filename} is gone"
            raise
        # Others commit all the time; what they write they look at themselves.
        return None

    def find_slow_loss(self) -> str | None:
        """Return what is wrong with the files by what costs too much for every commit. Raises OSError."""
        loss = self.find_loss()
        if loss is not None:
            return loss
        try:
            if identity_of(os.stat(self._index_path)) != self._index:  # noqa: PTH116
                return "the shared memory of the database was replaced"
        except FileNotFoundError as error:
            return f"{error.filename} is gone"
        return self._compare_header()

    def _compare(self, database: os.stat_result, log: os.stat_result, index: WalIndex | None) -> str | None:
        if identity_of(database) != self._database:
            return "the database is another file"
        if identity_of(log) != self._log:
            return "the write-ahead log is another file"
        if database.st_size < DATABASE_HEADER_BYTES:
            return "the database was truncated"
        if index is None or index.last_frame == 0:
            # There is nothing in the log, or it is being started anew.
            return None
        if log.st_size < index.size:
            return "the write-ahead log was truncated"
        if self._salts_in_log(index) != index.salts:
            return "the write-ahead log was overwritten"
        self._seen = (index.salts, index.last_frame)
        return None

    def _salts_in_log(self, index: WalIndex) -> bytes:
        """Return the salts at the last frame that was seen, else those of the log's header.

        If the log was truncated and written to since, it has a hole where that frame was.
        """
        if self._seen is not None and self._seen[0] == index.salts and self._seen[1] <= index.last_frame:
            offset = index.offset_after(self._seen[1] - 1)
            return os.pread(self._log_descriptor, FRAME_HEADER_BYTES, offset)[FRAME_SALTS]
        return os.pread(self._log_descriptor, LOG_HEADER_BYTES, 0)[LOG_SALTS]

    def _compare_header(self) -> str | None:
        """Compare the database with what it was, if no checkpoint can have changed it since."""
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

    def _stable_indexes(self) -> Iterator[WalIndex | None]:
        """Yield the wal-index again and again, and None at last if it is never found complete."""
        for _ in range(STABLE_ATTEMPTS):
            index = self._read_index()
            if index is not None:
                yield index
        yield None

    def _read_index(self) -> WalIndex | None:
        return read_index(self._held_index.read_mapped(INDEX_BYTES))


class DatabaseFiles:
    """Watches the files of a database on behalf of all connections of an engine.

    Once they are lost they stay so: what the connections hold and what is on disk have parted.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._files: OpenFiles | None = None
        self._connections = 0
        self._lost = False
        self._listeners: list[Callable[[], object]] = []

    @property
    def lost(self) -> bool:
        """Whether the files are lost, as far as it was noticed."""
        return self._lost

    def on_loss(self, listener: Callable[[], object]) -> None:
        """Have a function called, by whichever thread notices, when the files are lost."""
        self._listeners.append(listener)

    def opened(self, path: str) -> None:
        """Count a connection that has begun to use the files. Raises DatabaseLost and DatabaseNotVisible."""
        with self._lock:
            self._connections += 1
            if self._files is None:
                try:
                    self._files = OpenFiles(path)
                except OSError as error:
                    raise DatabaseNotVisible(str(error)) from error
        self.check()

    def closing(self) -> None:
        """Count a connection that closes; the last one may remove the log, and the next makes a new one."""
        with self._lock:
            self._connections -= 1
            if self._connections == 0 and self._files is not None:
                self._files.close()
                self._files = None

    def check(self) -> None:
        """Return if the files are those that were opened. Raises DatabaseLost and DatabaseNotVisible."""
        self._check(OpenFiles.find_loss)

    def check_log(self) -> None:
        """Return if nothing of the log is missing. Raises DatabaseLost and DatabaseNotVisible."""
        self._check(OpenFiles.find_short_log)

    def check_thoroughly(self) -> None:
        """Check what takes longer too. Raises DatabaseLost and DatabaseNotVisible."""
        self._check(OpenFiles.find_slow_loss)

    def refuse_if_lost(self) -> None:
        """Raise DatabaseLost if it is known that the files are lost."""
        if self._lost:
            raise DatabaseLost

    def _check(self, find_loss: Callable[[OpenFiles], str | None]) -> None:
        with self._lock:
            self.refuse_if_lost()
            try:
                loss = None if self._files is None else find_loss(self._files)
            except OSError as error:
                raise DatabaseNotVisible(str(error)) from error
            self._lost = loss is not None
        if loss is None:
            return
        lost = DatabaseLost()
        logger.critical("%s (%s); nothing is stored any more", lost, loss)
        for listener in self._listeners:
            with suppress(Exception):
                listener()
        raise lost


class FileWatch:
    """Checks the files of a database regularly, so that their loss is noticed if nothing is written."""

    def __init__(self, files: DatabaseFiles, interval: float = WATCH_SECONDS) -> None:
        self._files = files
        self._interval = interval
        complaint = "the files of the database cannot be looked at"
        self._periodic = Periodic("files", self._check, interval, logger, complaint, delay=interval)

    def start(self) -> None:
        """Begin."""
        self._periodic.start()

    def stop(self) -> None:
        """End, and wait for a check in progress."""
        self._periodic.stop()

    def _check(self) -> float | None:
        try:
            self._files.check_thoroughly()
        except DatabaseLost:
            # They stay lost, and the log has it already.
            return None
        return self._interval
