"""Connections to the journal's database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, cast

import sqlalchemy
from sqlalchemy import URL, Connection, Engine, event, make_url
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import ArgumentError
from sqlalchemy.pool import ConnectionPoolEntry

from cstp_grpc.storage.sqlite_files import DatabaseFiles

FILES_OPTION = "database_files"
"""The option of engines on SQLite with their DatabaseFiles."""

RESERVED_CONNECTIONS = 3
"""Connections beyond those for reading: the writer's, that of `ChangeWatch`, and one for migrations and the like."""

UNLIMITED = -1
"""What SQLAlchemy takes for no bound on the connections beyond those that are kept."""

POOL_TIMEOUT = 10.0
"""Seconds that a read waits for a connection."""

BUSY_MILLISECONDS = 10_000
"""How long SQLite waits for another process to release the database."""

SQLITE_PRAGMAS = (
    f"PRAGMA busy_timeout = {BUSY_MILLISECONDS}",
    "PRAGMA synchronous = FULL",
    # On macOS a plain fsync leaves the data in the drive's cache.
    "PRAGMA fullfsync = ON",
    "PRAGMA checkpoint_fullfsync = ON",
    "PRAGMA foreign_keys = ON",
    # What the write-ahead log needed once, it does not keep for ever.
    "PRAGMA journal_size_limit = 67108864",
    # Without it REPLACE removes rows behind the back of the triggers that keep the audit trail append-only.
    "PRAGMA recursive_triggers = ON",
)

POSTGRESQL_ARGUMENTS = {
    "connect_timeout": "5",
    "application_name": "cstp",
    "options": "-c timezone=UTC",
    # A server that vanished without a word is noticed within half a minute.
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "25000",
}


class DriverCursor(Protocol):
    """The cursor that a driver returns."""

    @property
    def description(self) -> Sequence[Sequence[Any]]:
        """The name and driver type of each column, followed by driver-specific items."""

    @property
    def rowcount(self) -> int:
        """How many rows were changed."""

    def fetchall(self) -> list[Any]:
        """Return the rows, each a tuple."""

    def executemany(self, sql: str, rows: Sequence[Any]) -> object:
        """Run a statement once for each row."""


class DriverConnection(Protocol):
    """The interface that connections of sqlite3 and psycopg have in common."""

    def execute(self, sql: str, parameters: Sequence[object] | Mapping[str, object] = ...) -> DriverCursor:
        """Run a statement."""

    def cursor(self) -> DriverCursor:
        """Return a new cursor."""


class UnsuitableDatabase(Exception):
    """The configured database cannot keep the journal; the message says why and contains no secret."""


def create_engine(url: str, pool_size: int) -> Engine:
    """Return the engine of a `sqlite:///PATH` or `postgresql://…` URL with `pool_size` connections.

    Raises UnsuitableDatabase for any other URL; a missing database is detected at its first use.
    """
    parsed = parse_database_url(url)
    if parsed.get_backend_name() == "sqlite":
        return create_sqlite_engine(parsed, pool_size)
    return create_postgresql_engine(parsed, pool_size)


def parse_database_url(url: str) -> URL:
    """Parse the URL of a SQLite file or a PostgreSQL database. Raises UnsuitableDatabase for any other."""
    try:
        parsed = make_url(url)
    # SQLAlchemy lets a port that is no number fail as Python does.
    except (ArgumentError, ValueError) as error:
        raise UnsuitableDatabase("storage.url: is not a database URL") from error
    backend = parsed.get_backend_name()
    if backend not in ("sqlite", "postgresql"):
        raise UnsuitableDatabase(
            f"storage.url: must begin with sqlite:/// or postgresql://, not {parsed.drivername}://"
        )
    if backend == "sqlite" and parsed.database in (None, "", ":memory:"):
        raise UnsuitableDatabase("storage.url: must name a file, because SQLite in memory keeps nothing")
    return parsed


def create_sqlite_engine(url: URL, pool_size: int) -> Engine:
    """Return an engine on a SQLite file, creating its folder."""
    Path(url.database or "").parent.mkdir(parents=True, exist_ok=True)
    files = DatabaseFiles()
    engine = sqlalchemy.create_engine(
        url,
        pool_size=pool_size,
        # The event loop, which reads too, must not wait for a connection; the number of threads is a bound.
        max_overflow=UNLIMITED,
        hide_parameters=True,
        connect_args={"isolation_level": None, "check_same_thread": False},
        execution_options={FILES_OPTION: files},
    )
    # SQLite would make a new file where the lost one was.
    event.listen(engine, "do_connect", lambda *_: files.check())
    event.listen(engine, "connect", prepare_sqlite_connection)
    event.listen(engine, "connect", lambda connection, _: files.register_connection(open_database_path(connection)))
    event.listen(engine, "checkout", lambda *_: files.refuse_if_lost())
    for closing in ("close", "close_detached"):
        event.listen(engine, closing, lambda *_: files.unregister_connection())
    event.listen(engine, "begin", begin_sqlite_transaction)
    return engine


def prepare_sqlite_connection(connection: DBAPIConnection, _entry: ConnectionPoolEntry) -> None:
    """Set the pragmas of a new connection: durable commits, and reads during writes."""
    cursor = connection.cursor()
    for pragma in SQLITE_PRAGMAS:
        cursor.execute(pragma)
    (mode,) = cursor.execute("PRAGMA journal_mode = WAL").fetchone()
    # In a new database the log is opened only now.
    cursor.execute("PRAGMA schema_version")
    cursor.close()
    if mode != "wal":
        raise UnsuitableDatabase(f"storage.url: SQLite's write-ahead log does not work there (journal mode {mode})")


def open_database_path(connection: DBAPIConnection) -> str:
    """Return the path of the file that SQLite has opened, without symbolic links."""
    cursor = connection.cursor()
    paths = {name: path for _, name, path in cursor.execute("PRAGMA database_list")}
    cursor.close()
    return str(paths["main"])


def get_database_files(engine: Engine) -> DatabaseFiles | None:
    """Return the checked files of a SQLite engine; None for PostgreSQL."""
    files: DatabaseFiles | None = engine.get_execution_options().get(FILES_OPTION)
    return files


def begin_sqlite_transaction(connection: Connection) -> None:
    """Begin a transaction explicitly, since the driver would begin it only at the first change.

    A writing transaction takes its lock at once (see `open_write_connection`): SQLite does not wait for one taken
    later.
    """
    writes = connection.get_execution_options().get("writes", False)
    get_driver_connection(connection).execute("BEGIN IMMEDIATE" if writes else "BEGIN")


def open_write_connection(engine: Engine) -> Connection:
    """Return a new connection whose transactions may write."""
    return engine.connect().execution_options(writes=True)


def get_driver_connection(connection: Connection) -> DriverConnection:
    """Return the driver connection inside a SQLAlchemy connection."""
    return cast(DriverConnection, connection.connection.driver_connection)


def can_commit(connection: Connection) -> bool:
    """Return True if the transaction can still be committed; some errors end it without saying so at once."""
    driver = connection.connection.driver_connection
    assert driver is not None
    if connection.dialect.name == "sqlite":
        return bool(driver.in_transaction)
    return bool(driver.info.transaction_status.name != "INERROR")


def create_postgresql_engine(url: URL, pool_size: int) -> Engine:
    """Return an engine on PostgreSQL; parameters in the URL override our defaults."""
    arguments = {key: value for key, value in POSTGRESQL_ARGUMENTS.items() if key not in url.query}
    return sqlalchemy.create_engine(
        url.set(drivername="postgresql+psycopg"),
        pool_size=pool_size,
        max_overflow=RESERVED_CONNECTIONS,
        pool_timeout=POOL_TIMEOUT,
        pool_pre_ping=True,
        hide_parameters=True,
        connect_args=arguments,
    )
