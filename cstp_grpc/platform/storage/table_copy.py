"""Copies all rows of one database into another, from SQLite to PostgreSQL, back, or between two of a kind."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Final, TypeAlias

from sqlalchemy import Column, Connection, Table, func, insert, inspect, select, text
from sqlalchemy.schema import sort_tables

from cstp_grpc.common.lazy_dataclass import dataclass
from cstp_grpc.platform.storage import migration
from cstp_grpc.platform.storage.database import Database
from cstp_grpc.platform.storage.sqlite_snapshot import SnapshotFailed

ROWS_AT_ONCE: Final = 500
"""Rows read and inserted at a time. Chosen: some of them are a megabyte."""

FILLED_BY_MIGRATION: Final = frozenset({"journal_identity"})
"""Tables that each database fills by itself, and that are not copied: a copied journal has its own name."""

DIGEST_MODULUS: Final = 1 << 256

Tables: TypeAlias = Sequence[Table]
"""Tables of a database, each after those that it refers to."""

SEQUENCE: Final = text("SELECT pg_get_serial_sequence(quote_ident(:table), :column)")
SET_SEQUENCE: Final = text("SELECT setval(CAST(:sequence AS regclass), :number, true)")


@dataclass(frozen=True, slots=True)
class TableDigest:
    """How many rows a table has, and the sum of the hashes of all, which no order of the rows changes."""

    rows: int = 0
    checksum: int = 0

    def add(self, rows: Sequence[Sequence[Any]]) -> TableDigest:
        hashes = (int.from_bytes(hashlib.sha256(repr(tuple(row)).encode()).digest()) for row in rows)
        return TableDigest(self.rows + len(rows), (self.checksum + sum(hashes)) % DIGEST_MODULUS)


def find_tables(modules: Sequence[ModuleType]) -> Tables:
    """Return the tables that modules define, each after those that it refers to."""
    found = {table.name: table for module in modules for table in vars(module).values() if isinstance(table, Table)}
    return sort_tables(found.values())


def count_source_rows(source: Database, tables: Tables) -> int:
    """Return how many rows there are to copy, for a progress bar. Raises SnapshotFailed for a wrong source."""
    with source.engine.connect() as connection:
        require_tables(connection, tables, "--from")
        return sum(
            connection.execute(select(func.count()).select_from(table)).scalar_one() for table in copied_tables(tables)
        )


def copy_tables(
    source: Database, target: Database, tables: Tables, on_rows: Callable[[int], object]
) -> Mapping[str, int]:
    """Copy all rows of one state of `source` into an empty `target`, all or nothing, and return the rows of each table.

    The copy is read again and compared before the one commit. Raises SnapshotFailed, and SQLAlchemyError if a
    database does not respond.
    """
    migration.migrate_database(target)
    with (
        source.with_repeatable_reads().engine.connect() as reading,
        reading.begin(),
        target.open_write_connection() as writing,
        writing.begin(),
    ):
        require_tables(reading, tables, "--from")
        hold_empty_target(writing, tables)
        with suspended_trigger(writing, "audit_entries", "audit_entries_refuse_insert"):
            copied = {table: copy_rows(reading, writing, table, on_rows) for table in copied_tables(tables)}
        for table, digest in copied.items():
            if digest_table(writing, table) != digest:
                raise SnapshotFailed(f"--to: the copy of {table.name} differs from the original; nothing was copied")
            copy_counter(reading, writing, table)
        return {table.name: digest.rows for table, digest in copied.items()}


def copied_tables(tables: Tables) -> Iterator[Table]:
    return (table for table in tables if table.name not in FILLED_BY_MIGRATION)


def require_tables(connection: Connection, tables: Tables, option: str) -> None:
    """Raise SnapshotFailed unless a database has exactly the tables that this version knows."""
    present = migration.read_revision(connection)
    if present != migration.newest_revision():
        raise SnapshotFailed(
            f"{option}: the database is at migration {present or 'none'}, and must be at {migration.newest_revision()};"
            " run `cstp migrate` with the newest version of this program first"
        )
    known = {table.name for table in tables}
    if unknown := sorted(set(inspect(connection).get_table_names()) - known - {migration.VERSION_TABLE.name}):
        raise SnapshotFailed(f"{option}: the database has tables that are not copied: {', '.join(unknown)}")


def hold_empty_target(connection: Connection, tables: Tables) -> None:
    """Keep all others from writing until the transaction ends. Raises SnapshotFailed if there are rows."""
    require_tables(connection, tables, "--to")
    if connection.dialect.name == "postgresql":
        # A server that starts waits for the first; on SQLite the transaction itself keeps others waiting.
        connection.execute(select(func.pg_advisory_xact_lock(migration.MIGRATION_LOCK)))
        quote = connection.dialect.identifier_preparer.quote
        names = ", ".join(quote(table.name) for table in tables)
        connection.execute(text(f"LOCK TABLE {names} IN EXCLUSIVE MODE"))
    for table in copied_tables(tables):
        if connection.execute(select(1).select_from(table).limit(1)).first() is not None:
            raise SnapshotFailed(f"--to: the database is not empty: {table.name} has rows")


@contextmanager
def suspended_trigger(connection: Connection, table: str, trigger: str) -> Iterator[None]:
    """Let rows be inserted that a trigger refuses: a copy has entries of before there were chains."""
    if connection.dialect.name == "postgresql":
        connection.execute(text(f"ALTER TABLE {table} DISABLE TRIGGER {trigger}"))
        yield
        connection.execute(text(f"ALTER TABLE {table} ENABLE TRIGGER {trigger}"))
        return
    query = text("SELECT sql FROM sqlite_master WHERE type = 'trigger' AND name = :name")
    definition = connection.execute(query, {"name": trigger}).scalar_one()
    connection.execute(text(f"DROP TRIGGER {trigger}"))
    yield
    connection.exec_driver_sql(definition)


def copy_rows(reading: Connection, writing: Connection, table: Table, on_rows: Callable[[int], object]) -> TableDigest:
    digest, names = TableDigest(), list(table.columns.keys())
    for rows in read_rows(reading, table):
        digest = digest.add(rows)
        writing.execute(insert(table).inline(), [dict(zip(names, row, strict=True)) for row in rows])
        on_rows(len(rows))
    return digest


def digest_table(connection: Connection, table: Table) -> TableDigest:
    digest = TableDigest()
    for rows in read_rows(connection, table):
        digest = digest.add(rows)
    return digest


def read_rows(connection: Connection, table: Table) -> Iterator[Sequence[Sequence[Any]]]:
    """Yield the rows of a table, some at a time, with their values as Python's types."""
    with connection.execute(select(table), execution_options={"yield_per": ROWS_AT_ONCE}) as result:
        yield from result.partitions()


def copy_counter(reading: Connection, writing: Connection, table: Table) -> None:
    """Let the numbers that a table gives its rows go on after the last one given, though its row may be gone."""
    column = table.autoincrement_column
    if column is None or (number := last_number(reading, table, column)) == 0:
        return
    if writing.dialect.name == "postgresql":
        if (sequence := writing.execute(SEQUENCE, {"table": table.name, "column": column.name}).scalar()) is not None:
            writing.execute(SET_SEQUENCE, {"sequence": sequence, "number": number})
    elif table.dialect_options["sqlite"]["autoincrement"]:
        writing.execute(text("DELETE FROM sqlite_sequence WHERE name = :table"), {"table": table.name})
        parameters = {"table": table.name, "number": number}
        writing.execute(text("INSERT INTO sqlite_sequence (name, seq) VALUES (:table, :number)"), parameters)


def last_number(connection: Connection, table: Table, column: Column[Any]) -> int:
    """Return the last number that a table gave, 0 for none."""
    newest: int = connection.execute(select(func.coalesce(func.max(column), 0))).scalar_one()
    if connection.dialect.name == "postgresql":
        sequence = connection.execute(SEQUENCE, {"table": table.name, "column": column.name}).scalar()
        if sequence is None:
            return newest
        query = text(f"SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM {sequence}")  # noqa: S608 - quoted by PostgreSQL
        counted: int = connection.execute(query).scalar_one()
        return max(newest, counted)
    if not table.dialect_options["sqlite"]["autoincrement"]:
        return newest
    query = text("SELECT seq FROM sqlite_sequence WHERE name = :table")
    given: int | None = connection.execute(query, {"table": table.name}).scalar()
    return max(newest, given or 0)
