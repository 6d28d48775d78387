"""Running a statement at the driver's own speed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from sqlalchemy import BindParameter, Connection, Delete, Dialect, Insert, Select, Update, bindparam
from sqlalchemy.exc import DBAPIError

from cstp_grpc.storage.engine import Cursor, Driver, driver_of

Values = Mapping[str, Any]
Row = Sequence[Any]
Parameters: TypeAlias = list[Any] | dict[str, Any]
"""Values as the driver takes them, by position or by name."""


class DriverStatement:
    """A statement, compiled once and run by the driver itself within a transaction of SQLAlchemy's.

    SQLAlchemy's own execution takes as long as a whole durable transaction on a fast disk, so what runs for every call
    goes this way. Values become the driver's, rows become Python's and errors SQLAlchemy's all the same, and where no
    transaction was begun, one begins.
    """

    def __init__(self, statement: Select[Any] | Insert | Update | Delete, dialect: Dialect) -> None:
        """Compile a statement; what `bindparam` names in it are the values that it is run with."""
        compiled: Any = statement.compile(dialect=dialect)
        found = {name: parameter for parameter, name in compiled.bind_names.items()}
        self._sql: str = compiled.string
        self._dialect = dialect
        self._errors = dialect.loaded_dbapi.Error
        self._positional: bool = compiled.positional
        self._names: Sequence[str] = compiled.positiontup if compiled.positional else list(found)
        self._constants = {name: known.value for name, known in found.items() if not known.required}
        types = [found[name].type.dialect_impl(dialect) for name in self._names]
        self._converters = positions([kind.bind_processor(dialect) for kind in types])
        # What the statement itself says of its columns may be that of the one it was derived from.
        self._columns = [column.type.dialect_impl(dialect) for column in compiled._result_columns]
        self._readers: list[tuple[int, Any]] | None = None
        """How what the driver returns becomes Python's; the first answer tells."""

    def run(self, connection: Connection, values: Values) -> int:
        """Run it and return how many rows it changed. Raises DBAPIError."""
        try:
            return self._execute(connection, self.prepare(values)).rowcount
        except self._errors as error:
            raise self._wrapped(error) from error

    def prepare(self, values: Values) -> Parameters:
        """Convert values to what the driver takes; needs no connection, so any thread may do it."""
        if self._constants:
            values = {**self._constants, **values}
        sent = converted([values[name] for name in self._names], self._converters)
        return sent if self._positional else dict(zip(self._names, sent, strict=True))

    def fill_in(self, prepared: Parameters, name: str, value: int) -> None:
        """Change a prepared value that was not known yet; numbers need no conversion."""
        if isinstance(prepared, dict):
            prepared[name] = value
        else:
            prepared[self._names.index(name)] = value

    def insert_rows(self, connection: Connection, rows: Sequence[Parameters]) -> None:
        """Run it once for each of the prepared `rows`. Raises DBAPIError."""
        driver = self._begin(connection)
        try:
            if len(rows) == 1:
                driver.execute(self._sql, rows[0])
            else:
                driver.cursor().executemany(self._sql, rows)
        except self._errors as error:
            raise self._wrapped(error) from error

    def all(self, connection: Connection, values: Values) -> list[Row]:
        """Run it and return its rows. Raises DBAPIError."""
        return self.all_prepared(connection, self.prepare(values))

    def all_prepared(self, connection: Connection, prepared: Parameters) -> list[Row]:
        """Run it with prepared values and return its rows. Raises DBAPIError."""
        try:
            return self._rows(self._execute(connection, prepared))
        except self._errors as error:
            raise self._wrapped(error) from error

    def first(self, connection: Connection, values: Values) -> Row | None:
        """Run it and return its first row; None where there is none. Raises DBAPIError."""
        rows = self.all(connection, values)
        return rows[0] if rows else None

    def fetch(self, driver: Driver, values: Values) -> list[Row]:
        """Run it on a connection of the driver's, outside any transaction of SQLAlchemy's, and return its rows.

        Raises DBAPIError.
        """
        try:
            return self._rows(driver.execute(self._sql, self.prepare(values)))
        except self._errors as error:
            raise self._wrapped(error) from error

    def _execute(self, connection: Connection, prepared: Parameters) -> Cursor:
        return self._begin(connection).execute(self._sql, prepared)

    def _begin(self, connection: Connection) -> Driver:
        """Return the driver's connection, inside a transaction."""
        if not connection.in_transaction():
            connection.begin()
        return driver_of(connection)

    def _rows(self, cursor: Cursor) -> list[Row]:
        """Return the rows that the driver answers with, their values as Python's."""
        rows = cursor.fetchall()
        if self._readers is None:
            codes = [column[1] for column in cursor.description]
            readers = [
                kind.result_processor(self._dialect, code) for kind, code in zip(self._columns, codes, strict=True)
            ]
            self._readers = positions(readers)
        return [converted(row, self._readers) for row in rows] if self._readers else rows

    def _wrapped(self, error: Exception) -> BaseException:
        return DBAPIError.instance(self._sql, None, error, self._errors, hide_parameters=True, dialect=self._dialect)


def parameters(names: Iterable[str]) -> dict[str, BindParameter[Any]]:
    """Return a parameter for each column, by its name, for the values of an INSERT or UPDATE."""
    return {name: bindparam(name) for name in names}


def positions(converters: Sequence[Any]) -> list[tuple[int, Any]]:
    """Return the converters that are there, each with its position."""
    return [(position, convert) for position, convert in enumerate(converters) if convert is not None]


def converted(values: Sequence[Any], converters: Sequence[tuple[int, Any]]) -> list[Any]:
    """Return values, those at some positions converted."""
    changed = list(values)
    for position, convert in converters:
        changed[position] = convert(changed[position])
    return changed
