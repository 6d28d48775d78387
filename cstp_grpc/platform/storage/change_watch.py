"""Detects commits of other processes to the database: by its version, and by notifications of PostgreSQL."""

from __future__ import annotations

import logging
import os
import selectors
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any, Final

from sqlalchemy import Connection, Dialect, func, select
from sqlalchemy.exc import DBAPIError

from cstp_grpc.platform.storage.background_work import PeriodicTask
from cstp_grpc.platform.storage.database import Database
from cstp_grpc.platform.storage.unit_of_work import CHANGE_CHANNEL, CompiledStatement, UnitOfWork, get_driver_connection

logger = logging.getLogger(__name__)

RECONNECT_SECONDS: Final = 1.0
"""Seconds before connecting again. The database is polled in the meantime, so nothing depends on it."""

GATHERING_SECONDS: Final = 0.02
"""Minimum seconds between two calls for notifications. Chosen: reading changes fifty times a second takes a few
percent of the time."""


class ChangeNotice:
    """Notifies other servers of a transaction once it is committed; they would find it by polling, a little later."""

    def __init__(self, dialect: Dialect) -> None:
        notice = select(func.pg_notify(CHANGE_CHANNEL, ""))
        # Processes on one SQLite file ask for its version, which costs a microsecond.
        self._notice = CompiledStatement(notice, dialect) if dialect.name == "postgresql" else None

    def give(self, unit_of_work: UnitOfWork) -> None:
        """Notify others when the transaction is committed, once however often this is called."""
        if self._notice is not None:
            self._notice.all(unit_of_work, {})


class NotificationListener:
    """Calls a function in a thread whenever another transaction that is worth noticing was committed.

    It is called, too, when listening begins or ends, since notifications may have been missed by then.
    """

    def __init__(self, database: Database, on_change: Callable[[], object]) -> None:
        self._engine = database.engine
        self._error = database.dialect.loaded_dbapi.Error
        self._on_change = on_change
        self._listening = threading.Event()
        # The reading and the writing end of a pipe to which `stop` writes, and which the thread waits for, too.
        self._stop_pipe: tuple[int, int] | None = None
        self._task = PeriodicTask(
            "notifications",
            self._listen,
            RECONNECT_SECONDS,
            logger,
            "the database sends no notifications of changes, so it is polled for them",
        )

    @property
    def is_listening(self) -> bool:
        """Whether every notification from now on will be noticed."""
        return self._listening.is_set()

    def start(self) -> None:
        self._stop_pipe = os.pipe()
        self._task.start()

    def stop(self) -> None:
        """Stop the thread, if it was started."""
        if self._stop_pipe is None:
            return
        reader, writer = self._stop_pipe
        os.write(writer, b"x")
        self._task.stop()
        os.close(writer)
        os.close(reader)

    def _listen(self) -> None:
        """Listen until `stop` is called. Raises DBAPIError if the connection is lost."""
        with closing(self._engine.connect().execution_options(isolation_level="AUTOCOMMIT")) as connection:
            try:
                self._receive(connection)
            except self._error as error:
                raise DBAPIError.instance("LISTEN", None, error, self._error, dialect=self._engine.dialect) from error
            finally:
                self._listening.clear()
                # It still listens, which nobody else who gets it from the pool wants.
                connection.invalidate()
                self._on_change()

    def _receive(self, connection: Connection) -> None:
        assert self._stop_pipe is not None, "it was started"
        stopping = self._stop_pipe[0]
        driver: Any = get_driver_connection(connection)
        driver.execute(f"LISTEN {CHANGE_CHANNEL}")
        self._listening.set()
        ready: list[int] = []
        while stopping not in ready:
            # The first turn notices commits before LISTEN, the others those that notifications report.
            self._on_change()
            # A change that comes after a pause is noticed at once; those that come in a row, together.
            ready = wait_readable([stopping], GATHERING_SECONDS)
            if not ready:
                ready = wait_readable([driver.fileno(), stopping])
            # All that have arrived are one change. A lost connection raises here.
            for _ in driver.notifies(timeout=0):
                pass


def wait_readable(descriptors: Sequence[int], seconds: float | None = None) -> list[int]:
    """Return the descriptors that can be read, as soon as one can or the time is over."""
    # Not `select.select`, which takes no descriptor from 1024 on.
    with selectors.DefaultSelector() as selector:
        for descriptor in descriptors:
            selector.register(descriptor, selectors.EVENT_READ)
        return [key.fd for key, _ in selector.select(seconds)]


VERSION_QUERIES = {
    # Counts the commits to the file by all connections but the one that asks.
    "sqlite": "PRAGMA data_version",
    # Differs as soon as what a transaction wrote can be seen; the position in the log moves before that.
    "postgresql": "SELECT txid_current_snapshot()::text",
}


class DatabaseVersion:
    """Reads a value that changes whenever anything is committed to the database.

    Reading takes microseconds on SQLite and a round trip on PostgreSQL. Only one thread at a time may read.
    """

    def __init__(self, database: Database) -> None:
        # A connection of its own, which stays open: SQLite's value counts the commits by others since it was opened.
        self._engine = database.engine
        self._query = VERSION_QUERIES[database.dialect.name]
        self._error = database.dialect.loaded_dbapi.Error
        self._connection: Connection | None = None
        self._connections = 0
        """How many connections were opened; part of the value."""

    def read(self) -> tuple[int, object]:
        if self._connection is None:
            # In a transaction on PostgreSQL the snapshot would stay as it is.
            self._connection = self._engine.connect().execution_options(isolation_level="AUTOCOMMIT")
            self._connections += 1
        try:
            ((value,),) = get_driver_connection(self._connection).execute(self._query).fetchall()
        except self._error as error:
            self.close()
            raise DBAPIError.instance(self._query, None, error, self._error, dialect=self._engine.dialect) from error
        # SQLite's counts of two connections cannot be compared.
        return self._connections, value

    def close(self) -> None:
        """Close the connection; the next read opens a new one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.invalidate()
            connection.close()


CATCH_UP_SECONDS: Final = 1.0
"""The interval of checks while notifications come, for transactions that give none, such as that of a private
intent. Chosen: long compared with the microseconds of a check, and short for readers of old data."""


class ChangeWatch:
    """Calls listeners in a thread after any process commits to the database.

    On PostgreSQL it checks as soon as a notification comes, and also at intervals: short ones if notifications are not
    available.
    """

    def __init__(self, database: Database, interval: float, listeners: Sequence[Callable[[], object]]) -> None:
        """Check every `interval` seconds; if a listener raises, call all of them again at the next check."""
        self._version = DatabaseVersion(database)
        self._interval = interval
        self._listeners = listeners
        self._seen: tuple[int, object] | None = None
        self._looking = PeriodicTask(
            "changes", self._look, interval, logger, "changes by other servers are not seen", delay=interval
        )
        postgresql = database.dialect.name == "postgresql"
        self._notifications = NotificationListener(database, self._looking.wake) if postgresql else None

    def start(self) -> None:
        """Start the thread; the first check calls all listeners."""
        self._looking.start()
        if self._notifications is not None:
            self._notifications.start()

    def stop(self) -> None:
        """Stop the thread, and wait for a listener that is being called."""
        if self._notifications is not None:
            self._notifications.stop()
        self._looking.stop()
        self._version.close()

    def _look(self) -> float:
        # Read before the listeners read, so that later commits are another version.
        version = self._version.read()
        if version != self._seen:
            for listener in self._listeners:
                listener()
            self._seen = version
        notified = self._notifications is not None and self._notifications.is_listening
        return max(self._interval, CATCH_UP_SECONDS) if notified else self._interval
