"""Units of work, and what runs in them: compiled statements, insertions and the lock of writers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Protocol, TypeAlias, cast

from sqlalchemy import BindParameter, Connection, Delete, Dialect, Insert, Select, Update, bindparam, func, select
from sqlalchemy.exc import DBAPIError


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

    A job of the writer is given one, and a snapshot yields one. Domains only pass it on to stores; what it offers is
    for the SQL stores. The writer has one for all transactions of its connection, so that a job costs no object.
    """

    __slots__ = ("_endings", "_is_sqlite", "connection", "driver", "execute")

    def __init__(self, connection: Connection) -> None:
        """Wrap a connection whose transactions its owner begins and ends."""
        self.connection = connection
        self.execute = connection.execute
        """Runs a statement of SQLAlchemy; an attribute, because a method would have to repeat all its overloads."""
        self.driver = get_driver_connection(connection)
        """The driver's connection, which `CompiledStatement` uses; it takes part in the same transaction."""
        self._endings: list[Callable[[], None]] = []
        self._is_sqlite = connection.dialect.name == "sqlite"

    def begin(self) -> None:
        """Begin a transaction that writes; for the owner of the connection. Raises DBAPIError."""
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
        if self.connection.in_transaction():
            self.connection.rollback()
        else:
            self._run_on_driver(lambda driver: driver.rollback())

    def _run_on_driver(self, act: Callable[[DriverConnection], object]) -> None:
        dialect = self.connection.dialect
        errors = dialect.loaded_dbapi.Error
        try:
            act(self.driver)
        except errors as error:
            raise DBAPIError.instance(None, None, error, errors, hide_parameters=True, dialect=dialect) from error

    def call_at_end(self, function: Callable[[], None]) -> None:
        """Call a function once the writer's transaction is committed or given up, before any caller learns of it."""
        self._endings.append(function)

    def end(self) -> None:
        """Call what waits for the end of the transaction; for the owner of the connection."""
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


def get_driver_connection(connection: Connection) -> DriverConnection:
    """Return the driver connection inside a SQLAlchemy connection."""
    return cast(DriverConnection, connection.connection.driver_connection)


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
    constants: Values
    converters: Sequence[tuple[int, Any]]


class CompiledStatement:
    """A statement that is compiled once, when it is first run, and run by the driver within a unit of work.

    SQLAlchemy's own execution takes as long as a whole durable transaction on a fast disk, so statements that run in
    every call use this class. Values, rows and errors are converted as SQLAlchemy does.
    """

    def __init__(self, statement: Select[Any] | Insert | Update | Delete, dialect: Dialect) -> None:
        """Set a statement; its `bindparam` names are the names of the values it is run with."""
        # A copy, because a statement that was compiled keeps its columns, and one derived from it later, such as with
        # RETURNING, would take them over.
        self._statement = statement.execution_options()
        self._dialect = dialect
        self._errors = dialect.loaded_dbapi.Error
        self._compiled: DriverStatement | None = None
        """Compiled at its first use: a server has about sixty statements, which together take half of its start.
        Threads that set it at the same time set equal ones.
        """
        self._readers: list[tuple[int, Any]] | None = None
        """The converters of result columns; the first result tells the driver's types. Threads that set it at the same
        time set equal lists.
        """

    def run(self, unit_of_work: UnitOfWork, values: Values) -> int:
        """Run the statement and return how many rows it changed. Raises DBAPIError."""
        try:
            return self._execute(unit_of_work, self.prepare(values)).rowcount
        except self._errors as error:
            raise self._to_dbapi_error(error) from error

    def prepare(self, values: Values) -> Parameters:
        """Convert values to the driver's types; needs no connection, so any thread may call it."""
        compiled = self._compiled or self._compile()
        if compiled.constants:
            values = {**compiled.constants, **values}
        sent = apply_converters([values[name] for name in compiled.names], compiled.converters)
        return sent if compiled.positional else dict(zip(compiled.names, sent, strict=True))

    def fill_in(self, prepared: Parameters, name: str, value: int) -> None:
        """Set a prepared value that was not known yet; it must be a number, which needs no conversion."""
        if isinstance(prepared, dict):
            prepared[name] = value
        else:
            prepared[(self._compiled or self._compile()).names.index(name)] = value

    def insert_rows(self, unit_of_work: UnitOfWork, rows: Sequence[Parameters]) -> None:
        """Run the statement once for each of the prepared `rows`. Raises DBAPIError."""
        driver, compiled = unit_of_work.driver, self._compiled or self._compile()
        try:
            if len(rows) == 1:
                driver.execute(compiled.sql, rows[0])
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
            return self._rows(self._execute(unit_of_work, prepared))
        except self._errors as error:
            raise self._to_dbapi_error(error) from error

    def first(self, unit_of_work: UnitOfWork, values: Values) -> Row | None:
        """Run the statement and return its first row; None if there is none. Raises DBAPIError."""
        rows = self.all(unit_of_work, values)
        return rows[0] if rows else None

    def fetch(self, driver: DriverConnection, values: Values) -> list[Row]:
        """Run the statement on a driver connection, outside SQLAlchemy transactions, and return its rows.

        Raises DBAPIError.
        """
        try:
            prepared = self.prepare(values)
            return self._rows(driver.execute((self._compiled or self._compile()).sql, prepared))
        except self._errors as error:
            raise self._to_dbapi_error(error) from error

    def _execute(self, unit_of_work: UnitOfWork, prepared: Parameters) -> DriverCursor:
        return unit_of_work.driver.execute((self._compiled or self._compile()).sql, prepared)

    def _compile(self) -> DriverStatement:
        compiled: Any = self._statement.compile(dialect=self._dialect)
        found = {name: parameter for parameter, name in compiled.bind_names.items()}
        names: Sequence[str] = compiled.positiontup if compiled.positional else list(found)
        types = [found[name].type.dialect_impl(self._dialect) for name in names]
        self._compiled = DriverStatement(
            compiled.string,
            compiled.positional,
            names,
            {name: known.value for name, known in found.items() if not known.required},
            indexed_converters([kind.bind_processor(self._dialect) for kind in types]),
        )
        return self._compiled

    def _rows(self, cursor: DriverCursor) -> list[Row]:
        """Return the rows of a cursor with their values converted to Python types."""
        rows = cursor.fetchall()
        if self._readers is None:
            codes = [column[1] for column in cursor.description]
            types = [column.type.dialect_impl(self._dialect) for column in self._statement.exported_columns]
            readers = [kind.result_processor(self._dialect, code) for kind, code in zip(types, codes, strict=True)]
            self._readers = indexed_converters(readers)
        return [apply_converters(row, self._readers) for row in rows] if self._readers else rows

    def _to_dbapi_error(self, error: Exception) -> BaseException:
        sql = (self._compiled or self._compile()).sql
        return DBAPIError.instance(sql, None, error, self._errors, hide_parameters=True, dialect=self._dialect)


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
"""The PostgreSQL channel on which transactions notify other servers of what they committed."""


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


class GlobalWriteLock:
    """Lets only one server at a time write data that must become visible in the order of its numbers.

    There is one lock for all such writes, because a transaction may contain several jobs: with one lock per kind, two
    servers could deadlock.
    """

    def __init__(self, dialect: Dialect) -> None:
        # The notice with the lock, because what becomes visible in its order is what other servers follow.
        lock = select(func.pg_advisory_xact_lock(ORDER_LOCK), func.pg_notify(CHANGE_CHANNEL, ""))
        # On SQLite a transaction that writes keeps all others waiting by itself.
        self._lock = CompiledStatement(lock, dialect) if dialect.name == "postgresql" else None

    def hold(self, unit_of_work: UnitOfWork) -> None:
        """Make the writes of other servers wait until the transaction ends, and notify them. Raises DBAPIError.

        A transaction that reads what it will change calls this first: what it read then stays valid, and two servers
        never deadlock.
        """
        if self._lock is not None:
            self._lock.all(unit_of_work, {})
