"""Migrated PostgreSQL databases that tests use one after the other, empty for each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psycopg

from tests.databases import PostgresServer, unique_name

DISCONNECT_MILLISECONDS = 10_000
"""How long a connection that a test left may take to end."""

DISCONNECT = (
    "SELECT pg_terminate_backend(pid, %s) FROM pg_stat_activity "
    "WHERE datname = current_database() AND pid <> pg_backend_pid()"
)

TABLES = (
    "SELECT relname FROM pg_class "
    "WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace AND (%s OR pg_relation_size(oid) > 0)"
)
"""The tables, all of them or those that something was written into, if only for a while."""

RESTART_SEQUENCES = (
    "SELECT setval(format('%I.%I', schemaname, sequencename)::regclass, start_value, false) "
    "FROM pg_sequences WHERE last_value IS NOT NULL"
)

SCHEMA = """
SELECT 'relation', relname::text, relkind::text, '' FROM pg_class WHERE relnamespace = 'public'::regnamespace
UNION ALL
SELECT 'column', attrelid::regclass::text, attname::text, pg_attribute.xmin::text
FROM pg_attribute JOIN pg_class ON pg_class.oid = attrelid WHERE relnamespace = 'public'::regnamespace
UNION ALL
SELECT 'constraint', conrelid::regclass::text, conname::text, xmin::text
FROM pg_constraint WHERE connamespace = 'public'::regnamespace
UNION ALL
SELECT 'function', proname::text, '', xmin::text FROM pg_proc WHERE pronamespace = 'public'::regnamespace
UNION ALL
SELECT 'trigger', tgrelid::regclass::text, tgname::text, xmin::text FROM pg_trigger WHERE NOT tgisinternal
ORDER BY 1, 2, 3, 4
"""
"""What the database is made of; `xmin` is the transaction that changed a row of the catalogue last."""

Rows = list[tuple[object, ...]]


@dataclass(frozen=True)
class OriginalContent:
    """What a migrated database contains before a test uses it."""

    schema: Rows
    tables: frozenset[str]
    rows: dict[str, Rows]
    """The rows of the tables that a migration fills."""


class ReusedDatabases:
    """Lends migrated databases and empties those that come back, which takes a third of what a new one takes.

    One whose schema, or what a migration wrote, a test has changed is dropped instead.
    """

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        self._free: list[str] = []
        self._original: OriginalContent | None = None

    @contextmanager
    def borrow(self) -> Iterator[str]:
        """Lend a database for the length of a block, by its URL."""
        name = self._free.pop() if self._free else self._create()
        try:
            yield self._server.url(name)
        finally:
            if self._empty(name):
                self._free.append(name)
            else:
                self._server.drop(name)

    def _create(self) -> str:
        name = unique_name()
        self._server.create(name, migrated=True)
        if self._original is None:
            with psycopg.connect(self._server.url(name), autocommit=True) as connection:
                self._original = read_original_content(connection)
        return name

    def _empty(self, name: str) -> bool:
        """Remove what a test wrote into a database; False if it is not what it was then."""
        assert self._original is not None
        with psycopg.connect(self._server.url(name), autocommit=True) as connection:
            connection.execute(DISCONNECT, [DISCONNECT_MILLISECONDS])
            for table in list_tables(connection, written=False) - self._original.tables:
                connection.execute(f'DROP TABLE "{table}" CASCADE')
            if read_schema(connection) != self._original.schema:
                return False
            if any(read_rows(connection, table) != rows for table, rows in self._original.rows.items()):
                return False
            if written := list_tables(connection, written=True) - self._original.rows.keys():
                # The tables that are append-only refuse it otherwise.
                connection.execute("SET session_replication_role = replica")
                connection.execute("TRUNCATE " + ", ".join(f'"{table}"' for table in sorted(written)) + " CASCADE")
            connection.execute(RESTART_SEQUENCES)
        return True


def read_original_content(connection: psycopg.Connection) -> OriginalContent:
    """Return what a database that was just migrated contains."""
    filled = list_tables(connection, written=True)
    rows = {table: read_rows(connection, table) for table in filled}
    return OriginalContent(read_schema(connection), list_tables(connection, written=False), rows)


def list_tables(connection: psycopg.Connection, *, written: bool) -> frozenset[str]:
    """Return the names of the tables, or of those only that something was written into."""
    return frozenset(name for (name,) in connection.execute(TABLES, [not written]))


def read_schema(connection: psycopg.Connection) -> Rows:
    """Return the relations, columns, constraints, functions and triggers of a database."""
    return list(connection.execute(SCHEMA))


def read_rows(connection: psycopg.Connection, table: str) -> Rows:
    """Return the rows of a table in no order that a reader may rely on."""
    return sorted(connection.execute(f'SELECT * FROM "{table}"'), key=repr)
