"""Migrated PostgreSQL databases that tests use one after the other, empty for each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
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
    "WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace AND pg_relation_size(oid) >= %s"
)
"""The tables whose files have at least so many bytes: something was written into those that have any, if only once."""

LARGE_BYTES = 256 * 1024
"""From this size on a table gets a new file, for searches read what was deleted, too.

That takes 2 ms for each table with its indexes, and to delete the rows of a small one 0.05 ms.
"""

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
    """Lends migrated databases and empties those that come back, which takes a tenth of what a new one takes.

    One whose schema, or what a migration wrote, a test has changed is dropped instead. A connection to each is kept,
    because a new one starts a process of the server that knows nothing of the catalogue yet.
    """

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        self._free: list[str] = []
        self._kept: dict[str, psycopg.Connection] = {}
        self._original: OriginalContent | None = None

    def close(self) -> None:
        """Close the connections."""
        for connection in self._kept.values():
            connection.close()
        self._kept.clear()

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
                self._kept.pop(name).close()
                self._server.drop(name)

    def _create(self) -> str:
        name = unique_name()
        self._server.create(name, migrated=True)
        if self._original is None:
            self._original = read_original_content(self._connect(name))
        return name

    def _connect(self, name: str) -> psycopg.Connection:
        """Return the kept connection to a database, or a new one if a test has ended it."""
        kept = self._kept.get(name)
        if kept is not None:
            with suppress(psycopg.OperationalError):
                kept.execute("SELECT")
                return kept
            kept.close()
        self._kept[name] = psycopg.connect(self._server.url(name), autocommit=True)
        return self._kept[name]

    def _empty(self, name: str) -> bool:
        """Remove what a test wrote into a database; False if it is not what it was then."""
        assert self._original is not None
        connection = self._connect(name)
        connection.execute(DISCONNECT, [DISCONNECT_MILLISECONDS])
        for table in list_tables(connection) - self._original.tables:
            connection.execute(f'DROP TABLE "{table}" CASCADE')
        if read_schema(connection) != self._original.schema:
            return False
        if any(read_rows(connection, table) != rows for table, rows in self._original.rows.items()):
            return False
        if written := list_tables(connection, at_least=1) - self._original.rows.keys():
            large = list_tables(connection, at_least=LARGE_BYTES) & written
            # The tables that are append-only refuse it otherwise.
            with connection.transaction():
                connection.execute("SET LOCAL session_replication_role = replica")
                for table in sorted(written - large):
                    connection.execute(f'DELETE FROM "{table}"')
                if large:
                    connection.execute("TRUNCATE " + ", ".join(f'"{table}"' for table in sorted(large)) + " CASCADE")
        connection.execute(RESTART_SEQUENCES)
        return True


def read_original_content(connection: psycopg.Connection) -> OriginalContent:
    """Return the rows of a database that was just migrated."""
    filled = list_tables(connection, at_least=1)
    rows = {table: found for table in filled if (found := read_rows(connection, table))}
    return OriginalContent(read_schema(connection), list_tables(connection), rows)


def list_tables(connection: psycopg.Connection, *, at_least: int = 0) -> frozenset[str]:
    """Return the names of the tables whose files have at least so many bytes."""
    return frozenset(name for (name,) in connection.execute(TABLES, [at_least]))


def read_schema(connection: psycopg.Connection) -> Rows:
    """Return the relations, columns, constraints, functions and triggers of a database."""
    return list(connection.execute(SCHEMA))


def read_rows(connection: psycopg.Connection, table: str) -> Rows:
    """Return the rows of a table in no order that a reader may rely on."""
    return sorted(connection.execute(f'SELECT * FROM "{table}"'), key=repr)
