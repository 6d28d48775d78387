"""Noticing what other processes write to the database."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from cstp_grpc.storage.engine import driver_of
from cstp_grpc.storage.periodic import Periodic

logger = logging.getLogger(__name__)

VERSION_QUERIES = {
    # Counts the commits to the file by all connections but the one that asks.
    "sqlite": "PRAGMA data_version",
    # Differs as soon as what a transaction wrote can be seen; the position in the log moves before that.
    "postgresql": "SELECT txid_current_snapshot()::text",
}


class DatabaseVersion:
    """Reads a value that differs from the one before if anything was committed in between.

    It takes microseconds on SQLite, a round trip on PostgreSQL. One thread at a time may read.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._query = VERSION_QUERIES[engine.dialect.name]
        self._error = engine.dialect.loaded_dbapi.Error
        self._connection: Connection | None = None
        self._connections = 0

    def read(self) -> tuple[int, object]:
        """Return the present value. Raises SQLAlchemyError."""
        if self._connection is None:
            # In a transaction on PostgreSQL the snapshot would stay as it is.
            self._connection = self._engine.connect().execution_options(isolation_level="AUTOCOMMIT")
            self._connections += 1
        try:
            ((value,),) = driver_of(self._connection).execute(self._query).fetchall()
        except self._error as error:
            self.close()
            raise DBAPIError.instance(self._query, None, error, self._error, dialect=self._engine.dialect) from error
        # SQLite's counts of two connections cannot be compared.
        return self._connections, value

    def close(self) -> None:
        """Give up the connection; the next value is read on a new one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.invalidate()
            connection.close()


class ChangeWatch:
    """Calls listeners in a thread after anything was committed to a database that other processes write to."""

    def __init__(self, engine: Engine, interval: float, listeners: Sequence[Callable[[], object]]) -> None:
        """Prepare to look every `interval` seconds; if a listener raises, all are called again the next time."""
        self._version = DatabaseVersion(engine)
        self._interval = interval
        self._listeners = listeners
        self._seen: tuple[int, object] | None = None
        self._looking = Periodic(
            "changes", self._look, interval, logger, "changes by other servers are not seen", delay=interval
        )

    def start(self) -> None:
        """Begin; the first look calls all listeners."""
        self._looking.start()

    def stop(self) -> None:
        """End, and wait for a listener that is being called."""
        self._looking.stop()
        self._version.close()

    def _look(self) -> float:
        # Read before the listeners look, so that what is committed meanwhile is another version.
        version = self._version.read()
        if version != self._seen:
            for listener in self._listeners:
                listener()
            self._seen = version
        return self._interval
