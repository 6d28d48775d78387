"""Statements, insertions, read snapshots, the write lock and error handling for SQL stores."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import Any, Final, Protocol, TypeAlias, cast

from sqlalchemy import (
    BindParameter,
    Connection,
    Delete,
    Dialect,
    Engine,
    Insert,
    Select,
    Update,
    bindparam,
    func,
    select,
)
from sqlalchemy.exc import DatabaseError, DBAPIError, SQLAlchemyError

from cstp_grpc.errors import QueryFailed
from cstp_grpc.storage.engine import DriverConnection, DriverCursor, get_driver_connection
from cstp_grpc.storage.sqlite_files import DatabaseLost

DAMAGED_DATABASE: Final = "the database is damaged and must be restored from a copy"

NOT_A_DATABASE: Final = "the file of the database is not a SQLite database"

DATA_CORRUPTED: Final = ("XX001", "XX002")
"""PostgreSQL's SQLSTATEs for damaged tables and indexes."""


def is_damage_error(error: BaseException) -> bool:
    """Return True if the error says that the database's files are damaged or are no database."""
    if getattr(getattr(error, "orig", None), "sqlstate", None) in DATA_CORRUPTED:
        return True
    # The driver of SQLite has kinds of errors for all else.
    return type(error) is DatabaseError


def describe_damage(error: BaseException) -> str:
    """Return a description of a damaged database that callers may see."""
    code = getattr(getattr(error, "orig", None), "sqlite_errorcode", None)
    return NOT_A_DATABASE if code == sqlite3.SQLITE_NOTADB else DAMAGED_DATABASE


def log_database_error(logger: logging.Logger, complaint: str, error: BaseException) -> None:
    """Log a database error; for damage, without the statement that happened to detect it."""
    if is_damage_error(error):
        logger.error("%s: %s (%s)", complaint, describe_damage(error), getattr(error, "orig", error))
    else:
        logger.error(complaint, exc_info=error)


Values = Mapping[str, Any]
Row = Sequence[Any]
Parameters: TypeAlias = list[Any] | dict[str, Any]
"""Values as the driver takes them, by position or by name."""


class CompiledStatement:
    """A statement that is compiled once and run by the driver within a transaction of SQLAlchemy.

    SQLAlchemy's own execution takes as long as a whole durable transaction on a fast disk, so statements that run in
    every call use this class. Values, rows and errors are converted as SQLAlchemy does, and a transaction begins if
    none has.
    """

    def __init__(self, statement: Select[Any] | Insert | Update | Delete, dialect: Dialect) -> None:
        """Compile a statement; its `bindparam` names are the names of the values it is run with."""
        compiled: Any = statement.compile(dialect=dialect)
        found = {name: parameter for parameter, name in compiled.bind_names.items()}
        self._sql: str = compiled.string
        self._dialect = dialect
        self._errors = dialect.loaded_dbapi.Error
        self._positional: bool = compiled.positional
        self._names: Sequence[str] = compiled.positiontup if compiled.positional else list(found)
        self._constants = {name: known.value for name, known in found.items() if not known.required}
        types = [found[name].type.dialect_impl(dialect) for name in self._names]
        self._converters = indexed_converters([kind.bind_processor(dialect) for kind in types])
        # What the statement itself says of its columns may be that of the one it was derived from.
        self._columns = [column.type.dialect_impl(dialect) for column in compiled._result_columns]
        self._readers: list[tuple[int, Any]] | None = None
        """How what the driver returns becomes Python's; the first answer tells."""

    def run(self, connection: Connection, values: Values) -> int:
        """Run the statement and return how many rows it changed. Raises DBAPIError."""
        try:
            return self._execute(connection, self.prepare(values)).rowcount
        except self._errors as error:
            raise self._to_dbapi_error(error) from error

    def prepare(self, values: Values) -> Parameters:
        """Convert values to the driver's types; needs no connection, so any thread may call it."""
        if self._constants:
            values = {**self._constants, **values}
        sent = apply_converters([values[name] for name in self._names], self._converters)
        return sent if self._positional else dict(zip(self._names, sent, strict=True))

    def fill_in(self, prepared: Parameters, name: str, value: int) -> None:
        """Set a prepared value that was not known yet; it must be a number, which needs no conversion."""
        if isinstance(prepared, dict):
            prepared[name] = value
        else:
            prepared[self._names.index(name)] = value

    def insert_rows(self, connection: Connection, rows: Sequence[Parameters]) -> None:
        """Run the statement once for each of the prepared `rows`. Raises DBAPIError."""
        driver = self._begin(connection)
        try:
            if len(rows) == 1:
                driver.execute(self._sql, rows[0])
            else:
                driver.cursor().executemany(self._sql, rows)
        except self._errors as error:
            raise self._to_dbapi_error(error) from error

    def all(self, connection: Connection, values: Values) -> list[Row]:
        """Run the statement and return its rows. Raises DBAPIError."""
        return self.all_prepared(connection, self.prepare(values))

    def all_prepared(self, connection: Connection, prepared: Parameters) -> list[Row]:
        """Run the statement with prepared values and return its rows. Raises DBAPIError."""
        try:
            return self._rows(self._execute(connection, prepared))
        except self._errors as error:
            raise self._to_dbapi_error(error) from error

    def first(self, connection: Connection, values: Values) -> Row | None:
        """Run the statement and return its first row; None if there is none. Raises DBAPIError."""
        rows = self.all(connection, values)
        return rows[0] if rows else None

    def fetch(self, driver: DriverConnection, values: Values) -> list[Row]:
        """Run the statement on a driver connection, outside SQLAlchemy transactions, and return its rows.

        Raises DBAPIError.
        """
        try:
            return self._rows(driver.execute(self._sql, self.prepare(values)))
        except self._errors as error:
            raise self._to_dbapi_error(error) from error

    def _execute(self, connection: Connection, prepared: Parameters) -> DriverCursor:
        return self._begin(connection).execute(self._sql, prepared)

    def _begin(self, connection: Connection) -> DriverConnection:
        """Return the driver connection, with a transaction begun."""
        if not connection.in_transaction():
            connection.begin()
        return get_driver_connection(connection)

    def _rows(self, cursor: DriverCursor) -> list[Row]:
        """Return the rows of a cursor with their values converted to Python types."""
        rows = cursor.fetchall()
        if self._readers is None:
            codes = [column[1] for column in cursor.description]
            readers = [
                kind.result_processor(self._dialect, code) for kind, code in zip(self._columns, codes, strict=True)
            ]
            self._readers = indexed_converters(readers)
        return [apply_converters(row, self._readers) for row in rows] if self._readers else rows

    def _to_dbapi_error(self, error: Exception) -> BaseException:
        return DBAPIError.instance(self._sql, None, error, self._errors, hide_parameters=True, dialect=self._dialect)


def bind_parameters(names: Iterable[str]) -> dict[str, BindParameter[Any]]:
    """Return a bind parameter for each column name, for the values of an INSERT or UPDATE."""
    return {name: bindparam(name) for name in names}


def indexed_converters(converters: Sequence[Any]) -> list[tuple[int, Any]]:
    """Return the converters that are not None, each with its position."""
    return [(position, convert) for position, convert in enumerate(converters) if convert is not None]


def apply_converters(values: Sequence[Any], converters: Sequence[tuple[int, Any]]) -> list[Any]:
    """Return the values with the converters applied at their positions."""
    changed = list(values)
    for position, convert in converters:
        changed[position] = convert(changed[position])
    return changed


class RowInserter(Protocol):
    """Inserts rows that were prepared for it."""

    def insert_rows(self, connection: Connection, rows: Sequence[Any]) -> None:
        """Insert rows within a transaction, in their order. Raises SQLAlchemyError."""


class RowInsertion:
    """A job that only inserts a row, so that the writer may batch it with its neighbours.

    The creator has already converted the values; the writer's thread only passes them to the driver.
    """

    __slots__ = ("row", "target")

    def __init__(self, target: RowInserter, row: Any) -> None:
        self.target = target
        self.row = row

    def __call__(self, connection: Connection) -> None:
        """Insert the row within a transaction. Raises SQLAlchemyError."""
        self.target.insert_rows(connection, [self.row])


def run_insertions(connection: Connection, insertions: Sequence[RowInsertion]) -> None:
    """Insert the rows of several insertions in their order, batching neighbours with the same target.

    Raises SQLAlchemyError if one of them fails; any number of the rows may have been inserted by then.
    """
    for target, neighbours in groupby(insertions, key=lambda insertion: insertion.target):
        target.insert_rows(connection, [insertion.row for insertion in neighbours])


ORDER_LOCK = 0x6373_7470_0002
"""The PostgreSQL advisory lock that makes numbers visible in their order."""


class GlobalWriteLock:
    """Lets only one server at a time write data that must become visible in the order of its numbers.

    There is one lock for all such writes, because a transaction may contain several jobs: with one lock per kind, two
    servers could deadlock.
    """

    def __init__(self, engine: Engine) -> None:
        lock = select(func.pg_advisory_xact_lock(ORDER_LOCK))
        # On SQLite a transaction that writes keeps all others waiting by itself.
        self._lock = CompiledStatement(lock, engine.dialect) if engine.dialect.name == "postgresql" else None

    def hold(self, connection: Connection) -> None:
        """Make the writes of other servers wait until the transaction ends. Raises DBAPIError.

        A transaction that reads what it will change calls this first: what it read then stays valid, and two servers
        never deadlock.
        """
        if self._lock is not None:
            self._lock.all(connection, {})


logger = logging.getLogger(__name__)


@contextmanager
def read_snapshot(engine: Engine) -> Iterator[Connection]:
    """Open a connection that sees one state of the database. Raises QueryFailed if it does not respond.

    The database's own message goes to the log only.
    """
    with translate_read_errors(), engine.connect() as connection:
        yield connection


@contextmanager
def open_driver_connection(engine: Engine) -> Iterator[DriverConnection]:
    """Open a driver connection. Raises QueryFailed if the database does not respond.

    It is for statements that take less time than opening a SQLAlchemy connection; each sees its own state.
    """
    with translate_read_errors():
        pooled = engine.raw_connection()
        try:
            yield cast(DriverConnection, pooled.driver_connection)
        except SQLAlchemyError:
            # Whatever state it is in, nobody else gets it.
            pooled.invalidate()
            raise
        finally:
            pooled.close()


@contextmanager
def translate_read_errors() -> Iterator[None]:
    """Raise QueryFailed instead of database errors, whose own message goes to the log only."""
    try:
        yield
    except DatabaseLost as error:
        raise QueryFailed(str(error)) from error
    except SQLAlchemyError as error:
        log_database_error(logger, "the journal cannot be read", error)
        reason = describe_damage(error) if is_damage_error(error) else "the journal cannot be read now; try again"
        raise QueryFailed(reason) from error
