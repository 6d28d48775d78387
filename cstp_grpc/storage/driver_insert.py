"""Inserting a row at the driver's own speed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sqlalchemy import Connection, Dialect, Table
from sqlalchemy.exc import DBAPIError

from cstp_grpc.storage.engine import driver_of

PLACEHOLDERS = {"qmark": "?", "pyformat": "%s", "format": "%s"}
"""How each style of driver marks a positional parameter."""


class DriverInsert:
    """An INSERT of one row, prepared once and run by the driver itself within a transaction of SQLAlchemy's.

    SQLAlchemy's own execution takes as long as a whole durable transaction on a fast disk, so what is written for every
    call goes this way. Errors are SQLAlchemy's all the same.
    """

    def __init__(self, table: Table, columns: Sequence[str], dialect: Dialect, returning: str | None = None) -> None:
        """Prepare for rows with values for `columns`, in that order; `returning` names a column to return."""
        quote = dialect.identifier_preparer.quote
        names = ", ".join(map(quote, columns))
        marks = ", ".join([PLACEHOLDERS[dialect.paramstyle]] * len(columns))
        self._sql = f"INSERT INTO {quote(table.name)} ({names}) VALUES ({marks})"  # noqa: S608 - names of our tables
        if returning is not None:
            self._sql += f" RETURNING {quote(returning)}"
        self._returning = returning is not None
        self._converters = converters(table, columns, dialect)
        self._dialect = dialect

    def execute(self, connection: Connection, row: Sequence[object]) -> int | None:
        """Insert a row; return the value of the column to return, if one was named. Raises DBAPIError."""
        values = list(row)
        for position, convert in self._converters:
            values[position] = convert(values[position])
        try:
            cursor = driver_of(connection).execute(self._sql, values)
            returned = cursor.fetchone() if self._returning else None
        except self._dialect.loaded_dbapi.Error as error:
            raise self._wrapped(error) from error
        return returned[0] if returned else None

    def _wrapped(self, error: Exception) -> BaseException:
        dialect = self._dialect
        return DBAPIError.instance(
            self._sql, None, error, dialect.loaded_dbapi.Error, hide_parameters=True, dialect=dialect
        )


def converters(table: Table, columns: Sequence[str], dialect: Dialect) -> list[tuple[int, Callable[[object], object]]]:
    """Return how values become the driver's, by position, for the columns where they must change."""
    found: list[tuple[int, Callable[[object], object]]] = []
    for position, name in enumerate(columns):
        convert = table.c[name].type.dialect_impl(dialect).bind_processor(dialect)
        if convert is not None:
            found.append((position, convert))
    return found
