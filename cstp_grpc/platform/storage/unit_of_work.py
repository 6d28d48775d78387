"""Units of work and what runs in them: column types, compiled statements, insertions and the lock of writers.

The tables are defined next to the SQL stores of their modules.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import cached_property
from itertools import chain, groupby
from typing import Any, Final, Protocol, TypeAlias, TypeVar, cast

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from cstp_grpc.common.lazy_dataclass import dataclass

T = TypeVar("T")


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

    def commit(self) -> None:
        """Commit the transaction; do nothing without one."""

    def rollback(self) -> None:
        """Undo the transaction; do nothing without one."""


class UnitOfWork:
    """A transaction of the database, in which stores read and write.

    A job of the writer gets one, and a snapshot yields one. Domains only pass it on to stores; its methods are
    for the SQL stores. The writer has one for all transactions of its connection, so that a job costs no object.
    """

    __slots__ = ("_endings", "_is_sqlite", "connection", "driver", "execute", "rollbacks", "transactions")

    def __init__(self, connection: sa.Connection) -> None:
        """Wrap a connection whose transactions its owner begins and ends."""
        self.connection = connection
        self.execute = connection.execute
        """Runs a statement of SQLAlchemy; an attribute, because a method would have to repeat all its overloads."""
        self.driver = get_driver_connection(connection)
        """The driver's connection, which `CompiledStatement` uses; it takes part in the same transaction."""
        self.transactions = 0
        """Number of transactions begun: changes of other processes are read once for each."""
        self.rollbacks = 0
        """Number of rollbacks: after one, copies in memory are no longer valid."""
        self._endings: list[Callable[[], None]] = []
        self._is_sqlite = connection.dialect.name == "sqlite"

    def shut_down_connection(self) -> None:
        """End the connection to a server from any thread: the thread that waits for its answer gets an error."""
        if self._is_sqlite:
            return
        driver: Any = self.driver
        # libpq has no time limit for answers, and its own functions are for the thread that uses the connection.
        with (
            suppress(OSError, self.connection.dialect.loaded_dbapi.Error),
            socket.socket(fileno=os.dup(driver.fileno())) as duplicate,
        ):
            duplicate.shutdown(socket.SHUT_RDWR)

    def begin(self) -> None:
        """Begin a transaction that writes; for the owner of the connection. Raises DBAPIError."""
        self.transactions += 1
        if self._is_sqlite:
            # By the driver: SQLAlchemy's begin and commit take as long again as SQLite's, see docs/benchmarks.md. Its
            # own statements, if there are any, find the transaction begun.
            self._run_on_driver(lambda driver: driver.execute("BEGIN IMMEDIATE"))
        else:
            self.connection.begin()

    def commit(self) -> None:
        """Commit the transaction; for the owner of the connection. Raises DBAPIError."""
        if self.connection.in_transaction():
            self.connection.commit()
        else:
            self._run_on_driver(lambda driver: driver.commit())

    def roll_back(self) -> None:
        """Undo the transaction, unless the database has done so; for the owner of the connection. Raises DBAPIError."""
        self.rollbacks += 1
        if self.connection.in_transaction():
            self.connection.rollback()
        else:
            self._run_on_driver(lambda driver: driver.rollback())

    def set_savepoint(self) -> None:
        """Set the savepoint of a job; for the owner of the connection. Raises the driver's error."""
        # By the driver, since SQLAlchemy's nested transactions take several times as long as an insertion.
        self.driver.execute("SAVEPOINT job")

    def roll_back_to_savepoint(self) -> None:
        """Undo the changes since the savepoint; for the owner of the connection. Raises the driver's error."""
        self.rollbacks += 1
        self.driver.execute("ROLLBACK TO SAVEPOINT job")

    def release_savepoint(self) -> None:
        """Release the savepoint, whose changes become those of the transaction. Raises the driver's error."""
        self.driver.execute("RELEASE SAVEPOINT job")

    def read_file_version(self) -> int:
        """Return a number that differs once another connection has committed to the file of SQLite. Raises DBAPIError.

        Within a transaction that writes, nobody else commits.
        """
        ((version,),) = self._run_on_driver(lambda driver: driver.execute("PRAGMA data_version").fetchall())
        return int(version)

    def _run_on_driver(self, act: Callable[[DriverConnection], T]) -> T:
        dialect = self.connection.dialect
        errors = dialect.loaded_dbapi.Error
        try:
            return act(self.driver)
        except errors as error:
            raise DBAPIError.instance(None, None, error, errors, hide_parameters=True, dialect=dialect) from error

    def call_at_end(self, function: Callable[[], None]) -> None:
        """Call a function once the writer's transaction is committed or given up, before any caller learns of it."""
        self._endings.append(function)

    def end(self) -> None:
        """Call the functions that wait for the end of the transaction; for the owner of the connection."""
        endings, self._endings = self._endings, []
        for function in endings:
            function()

    def can_commit(self) -> bool:
        """Return True if the transaction can still be committed; some errors end it without saying so at once."""
        # Not `self.driver`: a connection that broke in the meantime has another one, and asking for it raises.
        driver: Any = get_driver_connection(self.connection)
        if self._is_sqlite:
            return bool(driver.in_transaction)
        return bool(driver.info.transaction_status.name != "INERROR")


def get_driver_connection(connection: sa.Connection) -> DriverConnection:
    return cast(DriverConnection, connection.connection.driver_connection)


class UtcDateTime(sa.TypeDecorator[datetime]):
    """An instant with microseconds, stored and returned in UTC; raises ValueError for a naive one."""

    impl = sa.DateTime(timezone=True)
    cache_ok = True

    def bind_processor(self, dialect: sa.Dialect) -> Any:
        # In the text that SQLAlchemy's own conversion for SQLite makes, in a fifth of the time; every record has some.
        return format_sqlite_instant if dialect.name == "sqlite" else super().bind_processor(dialect)

    def process_bind_param(self, value: datetime | None, dialect: sa.Dialect) -> datetime | None:  # noqa: ARG002
        """Return an aware instant in UTC, as the database stores it."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"{value.isoformat()} says nothing of its time zone")
        return value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: sa.Dialect) -> datetime | None:  # noqa: ARG002
        """Return a stored instant as an aware one in UTC."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


def format_sqlite_instant(value: datetime | None) -> str | None:
    """Return an aware instant as SQLite keeps it, in UTC. Raises ValueError for a naive one."""
    if value is None:
        return None
    if value.tzinfo is None:
        raise ValueError(f"{value.isoformat()} says nothing of its time zone")
    return value.astimezone(UTC).replace(tzinfo=None).isoformat(" ", "microseconds")


# Identifiers are compared byte by byte on every database, so that listings have the same order on each.
IDENTIFIER = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
# SQLite numbers rows by itself only where the key is INTEGER, which holds 64 bits there.
SERIAL = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
# An absent value is the database's NULL, never the JSON text `null`.
OPTIONAL_JSON = sa.JSON(none_as_null=True)

metadata = sa.MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

CONDITION: Final = "condition"
"""The key, in the info of an index over some rows only, of their condition."""


def partial_index(*columns: str, where: str, name: str | None = None, unique: bool = False) -> sa.Index:
    """Return an index over the rows that meet a condition; a query must repeat the condition to use it."""
    # Not `postgresql_where`, for which SQLAlchemy loads the dialect and all its drivers, wherever the journal is.
    # Migrations make the indexes, and a test compares the two.
    return sa.Index(name, *columns, unique=unique, sqlite_where=sa.text(where), info={CONDITION: where})


def begins_with(column: sa.ColumnElement[str], prefix: str) -> sa.ColumnElement[bool]:
    """Return whether an identifier begins with ASCII characters, as a range that an index finds."""
    # LIKE uses no index on SQLite, where it ignores case.
    return sa.and_(column >= prefix, column < prefix[:-1] + chr(ord(prefix[-1]) + 1))


Values = Mapping[str, Any]
Row = Sequence[Any]
Parameters: TypeAlias = list[Any] | dict[str, Any]
"""Values as the driver takes them, by position or by name."""


@dataclass(frozen=True, slots=True)
class DriverStatement:
    """The SQL of a statement, and how its values are converted to the driver's types."""

    sql: str
    positional: bool
    names: Sequence[str]
    """The names of its values, in the order of their positions."""
    positions: Mapping[str, int]
    """The position of each value by its name."""
    constants: Values
    converters: Sequence[tuple[int, Any]]
    """Those that leave None as it is."""
    null_converters: Sequence[tuple[int, Any]]
    """Those that convert None, for instance to the JSON text `null`."""
    insertions: Mapping[int, str]
    """The same statement for so many rows; empty unless it is a plain INSERT on SQLite."""


class CompiledStatement:
    """A statement that is compiled once, when it is first run, and run by the driver within a unit of work.

    SQLAlchemy's own execution takes as long as a whole durable transaction on a fast disk, so statements that run in
    every call use this class. Values, rows and errors are converted as SQLAlchemy does.
    """

    def __init__(
        self, statement: sa.Select[*tuple[Any, ...]] | sa.Insert | sa.Update | sa.Delete, dialect: sa.Dialect
    ) -> None:
        """Set a statement; its `bindparam` names are the names of the values it is run with."""
        # A copy, because a statement that was compiled keeps its columns, and one derived from it later, such as with
        # RETURNING, would take them over.
        self._statement = statement.execution_options()
        self._dialect = dialect
        self._errors = dialect.loaded_dbapi.Error
        self._readers: list[tuple[int, Any]] | None = None
        """The converters of result columns; the first result tells the driver's types. Threads that set it at the same
        time set equal lists.
        """

    def run(self, unit_of_work: UnitOfWork, values: Values) -> int:
        """Run the statement and return how many rows it changed. Raises DBAPIError."""
        try:
            return unit_of_work.driver.execute(self._compiled.sql, self.prepare(values)).rowcount
        except self._errors as error:
            raise self._to_dbapi_error(error) from error

    def prepare(self, values: Values) -> Parameters:
        """Convert values to the driver's types; needs no connection, so any thread may call it."""
        compiled = self._compiled
        if compiled.constants:
            values = {**compiled.constants, **values}
        sent = [values[name] for name in compiled.names]
        for position, convert in compiled.converters:
            # Most columns of most rows are empty, and a call for each of them would take longer than the others.
            if sent[position] is not None:
                sent[position] = convert(sent[position])
        for position, convert in compiled.null_converters:
            sent[position] = convert(sent[position])
        return sent if compiled.positional else dict(zip(compiled.names, sent, strict=True))

    def fill_in(self, prepared: Parameters, name: str, value: int | bytes) -> None:
        """Set a prepared value that was not known yet: a number or bytes, which need no conversion."""
        if isinstance(prepared, dict):
            prepared[name] = value
        else:
            prepared[self._compiled.positions[name]] = value

    def fill_in_together(self, prepared: Parameters, names: Sequence[str], values: Sequence[int | bytes]) -> None:
        """Set prepared values, as `fill_in` does, that stand next to each other in the statement."""
        if isinstance(prepared, dict):
            prepared.update(zip(names, values, strict=True))
        else:
            first = self._compiled.positions[names[0]]
            prepared[first : first + len(names)] = values

    def insert_rows(self, unit_of_work: UnitOfWork, rows: Sequence[Parameters]) -> None:
        """Run the statement once for each of the prepared `rows`. Raises DBAPIError."""
        driver, compiled = unit_of_work.driver, self._compiled
        try:
            if len(rows) == 1:
                driver.execute(compiled.sql, rows[0])
            elif compiled.insertions:
                insert_together(driver, compiled.insertions, rows)
            else:
                driver.cursor().executemany(compiled.sql, rows)
        except self._errors as error:
            raise self._to_dbapi_error(error) from error

    def all(self, unit_of_work: UnitOfWork, values: Values) -> list[Row]:
        """Run the statement and return its rows. Raises DBAPIError."""
        return self.all_prepared(unit_of_work, self.prepare(values))

    def all_prepared(self, unit_of_work: UnitOfWork, prepared: Parameters) -> list[Row]:
        """Run the statement with prepared values and return its rows. Raises DBAPIError."""
        try:
            return self._rows(unit_of_work.driver.execute(self._compiled.sql, prepared))
        except self._errors as error:
            raise self._to_dbapi_error(error) from error

    def first(self, unit_of_work: UnitOfWork, values: Values) -> Row | None:
        """Run the statement and return its first row, or None. Raises DBAPIError."""
        rows = self.all(unit_of_work, values)
        return rows[0] if rows else None

    def fetch(self, driver: DriverConnection, values: Values) -> list[Row]:
        """Run the statement on a driver connection, outside SQLAlchemy transactions, and return its rows.

        Raises DBAPIError.
        """
        try:
            prepared = self.prepare(values)
            return self._rows(driver.execute(self._compiled.sql, prepared))
        except self._errors as error:
            raise self._to_dbapi_error(error) from error

    @cached_property
    def _compiled(self) -> DriverStatement:
        """The statement, compiled at its first use: all of them together would take half of a server's start."""
        compiled: Any = self._statement.compile(dialect=self._dialect)
        found = {name: parameter for parameter, name in compiled.bind_names.items()}
        names: Sequence[str] = compiled.positiontup if compiled.positional else list(found)
        untyped = [name for name in names if isinstance(found[name].type, sa.types.NullType)]
        if untyped:
            raise TypeError(f"parameters without a type, whose values would not be converted: {', '.join(untyped)}")
        types = [found[name].type.dialect_impl(self._dialect) for name in names]
        converters = indexed_converters([kind.bind_processor(self._dialect) for kind in types])
        return DriverStatement(
            compiled.string,
            compiled.positional,
            names,
            {name: position for position, name in enumerate(names)},
            {name: known.value for name, known in found.items() if not known.required},
            [(position, convert) for position, convert in converters if convert(None) is None],
            [(position, convert) for position, convert in converters if convert(None) is not None],
            multi_row_insertions(compiled.string, len(names)) if self._dialect.name == "sqlite" else {},
        )

    def _rows(self, cursor: DriverCursor) -> list[Row]:
        """Return the rows of a cursor with their values converted to Python types."""
        rows = cursor.fetchall()
        if self._readers is None:
            codes = [column[1] for column in cursor.description]
            types = [column.type.dialect_impl(self._dialect) for column in self._statement.exported_columns]
            readers = [kind.result_processor(self._dialect, code) for kind, code in zip(types, codes, strict=True)]
            self._readers = indexed_converters(readers)
        if self._readers:
            rows = [list(row) for row in rows]
            for row in rows:
                for position, convert in self._readers:
                    row[position] = convert(row[position])
        return rows

    def _to_dbapi_error(self, error: Exception) -> BaseException:
        return DBAPIError.instance(
            self._compiled.sql, None, error, self._errors, hide_parameters=True, dialect=self._dialect
        )


def bind_parameters(names: Iterable[str]) -> dict[str, sa.BindParameter[Any]]:
    """Return a bind parameter for each column name, for the values of an INSERT or UPDATE."""
    return {name: sa.bindparam(name) for name in names}


def indexed_converters(converters: Sequence[Any]) -> list[tuple[int, Any]]:
    return [(position, convert) for position, convert in enumerate(converters) if convert is not None]


ROWS_TOGETHER = (64, 32, 16, 8, 4, 2, 1)
"""Numbers of rows that one statement inserts: few, because the driver keeps each statement parsed."""
MAX_SQLITE_VALUES = 32_766
"""Maximum number of values of a statement (https://sqlite.org/limits.html, since 3.32)."""


def multi_row_insertions(sql: str, columns: int) -> dict[int, str]:
    """Return the SQL that inserts so many rows at once, by their number; empty unless it is a plain INSERT."""
    row = f"({', '.join('?' * columns)})"
    if not sql.endswith(f" VALUES {row}"):
        return {}
    return {count: sql + f", {row}" * (count - 1) for count in ROWS_TOGETHER if count * columns <= MAX_SQLITE_VALUES}


def insert_together(driver: DriverConnection, insertions: Mapping[int, str], rows: Sequence[Parameters]) -> None:
    """Insert rows in their order by a few statements.

    The driver releases the interpreter's lock twice in each step, for every row of `executemany`; a thread that gets it
    in between, such as that of the event loop, keeps it for as long as it computes.
    """
    start = 0
    for count, sql in insertions.items():
        while len(rows) - start >= count:
            driver.execute(sql, list(chain.from_iterable(rows[start : start + count])))
            start += count


class RowInserter(Protocol):
    """Inserts rows that were prepared for it."""

    def insert_rows(self, unit_of_work: UnitOfWork, rows: Sequence[Any]) -> None:
        """Insert rows within a transaction, in their order. Raises DBAPIError."""


class RowInsertion:
    """A job that only inserts a row, so that the writer may batch it with its neighbours.

    The creator has already converted the values; the writer's thread only passes them to the driver.
    """

    __slots__ = ("row", "target")

    def __init__(self, target: RowInserter, row: Any) -> None:
        self.target = target
        self.row = row

    def __call__(self, unit_of_work: UnitOfWork) -> None:
        """Insert the row within a transaction. Raises DBAPIError."""
        self.target.insert_rows(unit_of_work, [self.row])


def run_insertions(unit_of_work: UnitOfWork, insertions: Sequence[RowInsertion]) -> None:
    """Insert the rows of several insertions in their order, batching neighbours with the same target.

    Raises DBAPIError if one of them fails; any number of the rows may have been inserted by then.
    """
    for target, neighbours in groupby(insertions, key=lambda insertion: insertion.target):
        target.insert_rows(unit_of_work, [insertion.row for insertion in neighbours])


ORDER_LOCK = 0x6373_7470_0002
"""The PostgreSQL advisory lock that makes numbers visible in their order: `cstp` in ASCII, and a number of ours."""

CHANGE_CHANNEL = "cstp_changes"
"""The PostgreSQL channel on which transactions notify other servers of their commits."""


class GlobalWriteLock:
    """Lets only one server at a time write data that must become visible in the order of its numbers.

    There is one lock for all such writes, because a transaction may contain several jobs: with one lock per kind, two
    servers could deadlock.
    """

    def __init__(self, dialect: sa.Dialect) -> None:
        # The notice with the lock, because what becomes visible in its order is what other servers follow.
        lock = sa.select(sa.func.pg_advisory_xact_lock(ORDER_LOCK), sa.func.pg_notify(CHANGE_CHANNEL, ""))
        # On SQLite a transaction that writes keeps all others waiting by itself.
        self._lock = CompiledStatement(lock, dialect) if dialect.name == "postgresql" else None

    def hold(self, unit_of_work: UnitOfWork) -> None:
        """Make the writes of other servers wait until the transaction ends, and notify them. Raises DBAPIError.

        A transaction that reads rows before it changes them calls this first: the rows stay valid, and servers never
        deadlock.
        """
        if self._lock is not None:
            self._lock.all(unit_of_work, {})
