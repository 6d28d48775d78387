"""The journal's database: its connections, snapshots for reading, settings of SQLite and PostgreSQL, and its errors."""

from __future__ import annotations

import importlib
import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import sqlalchemy
from sqlalchemy import URL, Connection, Dialect, Engine, event, exc, make_url
from sqlalchemy.engine.interfaces import DBAPIConnection, DBAPICursor
from sqlalchemy.exc import InternalError as DatabaseInternalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.pool import ConnectionPoolEntry

from cstp_grpc.common.unicode_text import cut_line
from cstp_grpc.contract.errors import InternalError, QueryFailed, Unavailable
from cstp_grpc.platform.storage.locks import try_path_lock
from cstp_grpc.platform.storage.sqlite_files import DatabaseFiles, DatabaseLost
from cstp_grpc.platform.storage.unit_of_work import DriverConnection, UnitOfWork, get_driver_connection

if TYPE_CHECKING:
    from sqlalchemy.dialects import postgresql, sqlite

logger = logging.getLogger(__name__)

DAMAGED_DATABASE: Final = "the database is damaged and must be restored from a copy"

NOT_A_DATABASE: Final = "the file of the database is not a SQLite database"

DATA_CORRUPTED: Final = ("XX001", "XX002")
"""PostgreSQL's SQLSTATEs `data_corrupted` and `index_corrupted`."""


def is_damage_error(error: BaseException) -> bool:
    """Return True if the error says that the database's files are damaged or are no database."""
    if getattr(getattr(error, "orig", None), "sqlstate", None) in DATA_CORRUPTED:
        return True
    # SQLite's driver raises the base class itself for SQLITE_CORRUPT and SQLITE_NOTADB, a subclass for nearly all else.
    return type(error) is exc.DatabaseError


def describe_damage(error: BaseException) -> str:
    """Return a description of a damaged database that callers may see."""
    code = getattr(getattr(error, "orig", None), "sqlite_errorcode", None)
    return NOT_A_DATABASE if code == sqlite3.SQLITE_NOTADB else DAMAGED_DATABASE


FAILURE_LOG_SECONDS: Final = 10.0
"""How often the same condition of the database is logged while it lasts."""
MAX_CONDITIONS: Final = 20
"""Maximum number of distinguished conditions; few occur, but a message may contain a number."""


class FailureLog:
    """Logs errors of a database: a condition that lasts, such as a full disk, in one line every few seconds."""

    def __init__(self, logger: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._logger = logger
        self._clock = clock
        self._logged: dict[str, tuple[float, int]] = {}
        """When each condition was logged last, and how often it was left out since."""

    def log(self, complaint: str, error: BaseException) -> None:
        """Log an error: with a traceback if it is unexpected; damage without the statement that detected it."""
        if is_damage_error(error):
            self._logger.error("%s: %s (%s)", complaint, describe_damage(error), getattr(error, "orig", error))
        elif (condition := describe_condition(error)) is None:
            self._logger.error(complaint, exc_info=error)
        else:
            self._log_condition(complaint, condition)

    def _log_condition(self, complaint: str, condition: str) -> None:
        now = self._clock()
        last, left_out = self._logged.get(condition, (None, 0))
        if last is not None and now - last < FAILURE_LOG_SECONDS:
            self._logged[condition] = last, left_out + 1
            return
        if len(self._logged) == MAX_CONDITIONS:
            self._logged.clear()
        self._logged[condition] = now, 0
        more = f" ({left_out} more failures since the last line)" if left_out else ""
        self._logger.error("%s: %s%s", complaint, condition, more)


def describe_condition(error: BaseException) -> str | None:
    """Return the reason why a database fails, in one line; None for an error that code may have caused."""
    known = error.__cause__ if isinstance(error, CommitOutcomeUnknown) else error
    if not isinstance(known, exc.OperationalError):
        return None
    code = getattr(known.orig, "sqlite_errorcode", None)
    return None if code is not None and code & PRIMARY_CODE not in CONDITIONS else cut_line(str(known.orig), 300)


@contextmanager
def translate_read_errors(*, logs_failures: bool = True) -> Iterator[None]:
    """Raise QueryFailed instead of database errors, whose own message goes to the log only."""
    try:
        yield
    except DatabaseLost as error:
        raise QueryFailed(str(error)) from error
    except exc.SQLAlchemyError as error:
        if logs_failures:
            FailureLog(logger).log("the journal cannot be read", error)
        reason = describe_damage(error) if is_damage_error(error) else "the journal cannot be read now; try again"
        raise QueryFailed(reason) from error


CANNOT_ANSWER = (exc.OperationalError, exc.ProgrammingError, exc.InterfaceError, DatabaseInternalError, PoolTimeout)
"""Errors by which the database refuses an otherwise valid statement.

A missing table or privilege is a ProgrammingError on PostgreSQL and an OperationalError on SQLite.
"""

ROLLBACK_SQLSTATE_CLASS = "40"
"""PostgreSQL's class "Transaction Rollback" (https://www.postgresql.org/docs/current/errcodes-appendix.html)."""

REPEAT_IS_SAFE = "repeating the request with the same identifiers is safe"


class CommitOutcomeUnknown(Exception):
    """The database failed during a commit, so that the transaction may or may not be on disk."""

    def __str__(self) -> str:
        return describe_condition(self) or "a commit failed"


def caller_error(error: BaseException, failures: FailureLog) -> BaseException:
    """Return the error for the caller of a failed job, in place of an error of the database, and log that.

    It is Unavailable if the database could not do the job, and InternalError if it rejected a statement of ours.
    """
    if isinstance(error, CANNOT_ANSWER) or is_damage_error(error):
        failures.log("the database could not do a job", error)
        return unavailable_error(error)
    if not isinstance(error, exc.SQLAlchemyError):
        return error
    logger.error("the database rejected a statement of a job", exc_info=error)
    rejected = InternalError("the record could not be stored, because the database rejected it")
    rejected.__cause__ = error
    return rejected


def is_certain_rollback(error: exc.SQLAlchemyError) -> bool:
    """Return True if a failed commit has certainly stored nothing; after most errors that is unknown."""
    if isinstance(error, exc.IntegrityError):
        return True
    cause = getattr(error, "orig", None)
    code, state = getattr(cause, "sqlite_errorcode", None), getattr(cause, "sqlstate", None)
    if code is not None:
        return code & PRIMARY_CODE in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
    return state is not None and state.startswith(ROLLBACK_SQLSTATE_CLASS)


def unavailable_error(cause: BaseException) -> Unavailable:
    """Return the error for a caller; the database's own message goes to the log only."""
    if isinstance(cause, CommitOutcomeUnknown):
        message = f"it is unknown whether the record was stored; {REPEAT_IS_SAFE}"
    elif isinstance(cause, DatabaseLost):
        message = str(cause)
    elif is_damage_error(cause):
        message = f"the record could not be stored: {describe_damage(cause)}"
    else:
        message = "the record could not be stored; try again"
    error = Unavailable(message)
    error.__cause__ = cause
    return error


def describe_database_failure(error: Exception) -> str | None:
    """Return the reason why the database cannot be used, for the operator; None for an error of another kind."""
    if not isinstance(error, exc.SQLAlchemyError):
        return None
    return describe_damage(error) if is_damage_error(error) else str(getattr(error, "orig", None) or error)


RESERVED_CONNECTIONS = 4
"""Connections beyond those for reading: the writer's, those of `ChangeWatch` and its notifications, and one for
migrations and the like."""

UNLIMITED = -1
"""SQLAlchemy's value for an unlimited number of connections beyond those of the pool."""

POOL_TIMEOUT = 10.0
"""Seconds that a read waits for a connection."""

BUSY_MILLISECONDS = 10_000
"""How long SQLite waits for another process to release the database."""

BUSY_RETRY_SECONDS = 0.01
"""Seconds between attempts where SQLite does not wait by itself; switching to the log takes about a millisecond."""

PRIMARY_CODE = 0xFF
"""The bits of a SQLite result code that hold the primary one (https://sqlite.org/rescode.html)."""

CONDITIONS: Final = frozenset(
    (
        *(sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN),
        *(sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PERM, sqlite3.SQLITE_NOMEM),
    )
)
"""The primary codes of SQLite for errors caused by its environment, not by a statement."""

SQLITE_PRAGMAS = (
    f"PRAGMA busy_timeout = {BUSY_MILLISECONDS}",
    "PRAGMA synchronous = FULL",
    # On macOS a plain fsync leaves the data in the drive's cache.
    "PRAGMA fullfsync = ON",
    "PRAGMA checkpoint_fullfsync = ON",
    "PRAGMA foreign_keys = ON",
    # A group of rows would use the temporary folder of the system, which may be read-only.
    "PRAGMA temp_store = MEMORY",
    # What the write-ahead log needed once, it does not keep for ever.
    "PRAGMA journal_size_limit = 67108864",
    # Without it REPLACE removes rows behind the back of the triggers that keep the audit trail append-only.
    "PRAGMA recursive_triggers = ON",
)

CREATION_LOCK: Final = threading.Lock()
"""Held while a SQLite file is created, before any connection of this process opens it."""

POSTGRESQL_ARGUMENTS = {
    "connect_timeout": "5",
    "application_name": "cstp",
    # Summaries read the hours and days from the text of instants.
    "options": "-c timezone=UTC -c datestyle=ISO",
    # A server that vanished without a word is noticed within half a minute.
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "25000",
}


class UnsuitableDatabase(Exception):
    """The configured database cannot store the journal; the message gives the reason, without secrets."""


class Database:
    """The journal's database: its connections, and the checks of its files if it is SQLite.

    Only storage and the SQL stores use `engine` and `dialect`.
    """

    def __init__(self, engine: Engine, files: DatabaseFiles | None) -> None:
        """Wrap an engine; `files` are the checked files of a SQLite database."""
        self.engine = engine
        self.files = files

    @property
    def dialect(self) -> Dialect:
        return self.engine.dialect

    @property
    def is_sqlite(self) -> bool:
        """Whether it is a SQLite file of this machine, and not PostgreSQL."""
        return self.files is not None

    @property
    def path(self) -> Path | None:
        """The path of the SQLite file; None for PostgreSQL."""
        return Path(str(self.engine.url.database)) if self.is_sqlite else None

    def with_repeatable_reads(self) -> Database:
        """Return the same database, whose snapshots see one state across several statements, as on SQLite anyway."""
        if self.is_sqlite:
            return self
        # Without it each statement of a transaction on PostgreSQL sees what others committed meanwhile.
        return Database(self.engine.execution_options(isolation_level="REPEATABLE READ"), self.files)

    def refuse_if_lost(self) -> None:
        """Raise QueryFailed if a loss of the files was detected; for reads that need no connection."""
        if self.files is not None and self.files.is_lost:
            with translate_read_errors():
                self.files.refuse_if_lost()

    def close(self) -> None:
        self.engine.dispose()

    def insertion(self, table: sqlalchemy.Table) -> postgresql.Insert | sqlite.Insert:
        """Return an insertion that supports conflicts with existing rows; only the dialect in use is loaded."""
        made: sqlite.Insert = importlib.import_module(f"sqlalchemy.dialects.{self.dialect.name}").insert(table)
        return made

    @contextmanager
    def try_lock(self, name: str) -> Iterator[bool]:
        """Hold a lock for the block that one process at a time can hold; yield False if another process has it.

        Raises QueryFailed if the database does not respond.
        """
        if self.path is not None:
            with try_path_lock(self.path.with_name(f"{self.path.name}.{name}.lock")) as is_held:
                yield is_held
            return
        with self.background_snapshot() as unit_of_work:
            locking = sqlalchemy.func.pg_try_advisory_xact_lock(sqlalchemy.func.hashtext(f"cstp {name}"))
            yield unit_of_work.execute(sqlalchemy.select(locking)).scalar_one()

    def open_write_connection(self) -> Connection:
        return self.engine.connect().execution_options(writes=True)

    @contextmanager
    def read_snapshot(self, *, logs_failures: bool = True) -> Iterator[UnitOfWork]:
        """Open a unit of work for reading. Raises QueryFailed if the database does not respond.

        The database's own message goes to the log only; without `logs_failures`, the caller logs it.
        """
        with translate_read_errors(logs_failures=logs_failures), self.engine.connect() as connection:
            # Begun here, because statements that run on the driver's connection would not begin a transaction.
            connection.begin()
            yield UnitOfWork(connection)

    def background_snapshot(self) -> AbstractContextManager[UnitOfWork]:
        """Open a unit of work as `read_snapshot` does, for background work, which logs a failure once itself."""
        return self.read_snapshot(logs_failures=False)

    @contextmanager
    def open_driver_connection(self) -> Iterator[DriverConnection]:
        """Open a driver connection. Raises QueryFailed if the database does not respond.

        It is for statements that take less time than opening a SQLAlchemy connection; each sees its own state.
        """
        with translate_read_errors():
            pooled = self.engine.raw_connection()
            try:
                yield cast(DriverConnection, pooled.driver_connection)
            except exc.SQLAlchemyError:
                # Whatever state it is in, nobody else gets it.
                pooled.invalidate()
                raise
            finally:
                pooled.close()


def open_database(url: str, pool_size: int) -> Database:
    """Return the database of a `sqlite:///PATH` or `postgresql://…` URL with `pool_size` connections.

    Raises UnsuitableDatabase for any other URL; a missing database is detected at its first use.
    """
    parsed = parse_database_url(url)
    if parsed.get_backend_name() == "sqlite":
        return open_sqlite_database(parsed, pool_size)
    return Database(create_postgresql_engine(parsed, pool_size), None)


def parse_database_url(url: str, setting: str = "storage.url") -> URL:
    """Parse the URL of a SQLite file or a PostgreSQL database. Raises UnsuitableDatabase for any other."""
    try:
        parsed = make_url(url)
    # SQLAlchemy lets a port that is no number fail as Python does.
    except (exc.ArgumentError, ValueError) as error:
        raise UnsuitableDatabase(f"{setting}: is not a database URL") from error
    backend = parsed.get_backend_name()
    if backend not in ("sqlite", "postgresql"):
        raise UnsuitableDatabase(
            f"storage.url: must begin with sqlite:/// or postgresql://, not {parsed.drivername}://"
        )
    if backend == "sqlite" and parsed.database in (None, "", ":memory:"):
        raise UnsuitableDatabase("storage.url: must name a file, because SQLite in memory keeps nothing")
    return parsed


def open_sqlite_database(url: URL, pool_size: int) -> Database:
    """Return the database in a SQLite file, creating its folder."""
    path = Path(url.database or "")
    path.parent.mkdir(parents=True, exist_ok=True)
    files = DatabaseFiles()
    engine = sqlalchemy.create_engine(
        url,
        pool_size=pool_size,
        # The event loop, which reads too, must not wait for a connection; the number of threads is a bound.
        max_overflow=UNLIMITED,
        hide_parameters=True,
        connect_args={"isolation_level": None, "check_same_thread": False},
    )
    # SQLite would make a new file where the lost one was.
    event.listen(engine, "do_connect", lambda *_: files.check())
    event.listen(engine, "do_connect", lambda *_: create_private_file(path))
    event.listen(engine, "connect", prepare_sqlite_connection)
    event.listen(engine, "connect", lambda connection, _: files.register_connection(open_database_path(connection)))
    event.listen(engine, "checkout", lambda *_: files.refuse_if_lost())
    for closing in ("close", "close_detached"):
        event.listen(engine, closing, lambda *_: files.unregister_connection())
    event.listen(engine, "begin", begin_sqlite_transaction)
    return Database(engine, files)


def begin_sqlite_transaction(connection: Connection) -> None:
    """Begin a transaction explicitly, since the driver would begin it only at the first change.

    A writing transaction takes its lock at once (see `Database.open_write_connection`), because SQLite does not wait
    for one taken later.
    """
    driver: Any = get_driver_connection(connection)
    # The writer has begun it by the driver, see `UnitOfWork.begin`.
    if not driver.in_transaction:
        writes = connection.get_execution_options().get("writes", False)
        driver.execute("BEGIN IMMEDIATE" if writes else "BEGIN")


def create_private_file(path: Path) -> None:
    """Create an empty file that only its owner may read, unless it exists; SQLite copies its mode to the log."""
    # SQLite says why if that fails. The lock, because closing the file of an open database takes SQLite's locks away.
    with CREATION_LOCK, suppress(OSError):
        os.close(os.open(os.path.realpath(path), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


def prepare_sqlite_connection(connection: DBAPIConnection, _entry: ConnectionPoolEntry) -> None:
    """Set the pragmas of a new connection: durable commits, and reads during writes."""
    cursor = connection.cursor()
    for pragma in SQLITE_PRAGMAS:
        cursor.execute(pragma)
    mode = switch_to_wal(cursor)
    # In a new database the log is opened only now.
    cursor.execute("PRAGMA schema_version")
    cursor.close()
    if mode != "wal":
        raise UnsuitableDatabase(f"storage.url: SQLite's write-ahead log does not work there (journal mode {mode})")


def switch_to_wal(cursor: DBAPICursor) -> str:
    """Switch the database to a write-ahead log unless it has one, and return its journal mode."""
    ends_at = time.monotonic() + BUSY_MILLISECONDS / 1000
    while True:
        try:
            cursor.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            # Of connections that open a new file at once, SQLite refuses all but one without the wait of busy_timeout.
            if error.sqlite_errorcode & PRIMARY_CODE != sqlite3.SQLITE_BUSY or time.monotonic() > ends_at:
                raise
            time.sleep(BUSY_RETRY_SECONDS)
        else:
            (mode,) = cursor.fetchall()[0]
            return str(mode)


def open_database_path(connection: DBAPIConnection) -> str:
    """Return the path of the file that SQLite has opened, without symbolic links."""
    cursor = connection.cursor()
    paths = {name: path for _, name, path in cursor.execute("PRAGMA database_list")}
    cursor.close()
    return str(paths["main"])


def create_postgresql_engine(url: URL, pool_size: int, options: str = "") -> Engine:
    """Return an engine on PostgreSQL with more `options` of sessions; parameters in the URL override our defaults."""
    defaults = {**POSTGRESQL_ARGUMENTS, "options": f"{POSTGRESQL_ARGUMENTS['options']} {options}".rstrip()}
    arguments = {key: value for key, value in defaults.items() if key not in url.query}
    return sqlalchemy.create_engine(
        url.set(drivername="postgresql+psycopg"),
        pool_size=pool_size,
        max_overflow=RESERVED_CONNECTIONS,
        pool_timeout=POOL_TIMEOUT,
        pool_pre_ping=True,
        hide_parameters=True,
        # No table has this type, which would be looked up with the first connection.
        use_native_hstore=False,
        connect_args=arguments,
    )
