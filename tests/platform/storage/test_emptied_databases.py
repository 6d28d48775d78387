"""PostgreSQL databases that tests use one after the other: whatever one did, the next finds a new one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import psycopg
import pytest

from tests.databases import PostgresServer
from tests.emptied_databases import OriginalContent, ReusedDatabases, read_original_content

APPEND_ONLY = (
    "INSERT INTO audit_entries (timestamp, event, requesting_agent, request_id, evaluated, chain_id, chain_position, "
    "previous_hash, entry_hash) VALUES (now(), 'guardrail_check', 'alice', 'request-1', 0, 1, 1, "
    "sha256('a'), sha256('b'))"
)


@pytest.fixture
def databases(postgres: PostgresServer) -> Iterator[ReusedDatabases]:
    with closing(ReusedDatabases(postgres)) as databases:
        yield databases


def change(url: str, *statements: str) -> None:
    """Run statements in a database."""
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement)


def content(url: str) -> OriginalContent:
    with psycopg.connect(url, autocommit=True) as connection:
        return read_original_content(connection)


def test_what_was_written_is_gone_and_numbers_begin_again(databases: ReusedDatabases) -> None:
    with databases.borrow() as first:
        original = content(first)
        change(
            first,
            "INSERT INTO liaison_event_counters (tenant, last_sequence) VALUES ('acme', 1)",
            APPEND_ONLY,
            "SELECT nextval('outbox_seq_seq'), nextval('audit_entries_id_seq')",
            "CREATE TABLE things (tenant VARCHAR REFERENCES liaison_event_counters)",
        )
    with databases.borrow() as again:
        assert again == first
        assert content(again) == original
        with psycopg.connect(again) as connection:
            assert connection.execute("SELECT nextval('outbox_seq_seq')").fetchone() == (1,)


def test_a_large_table_is_emptied_with_its_file(databases: ReusedDatabases) -> None:
    with databases.borrow() as first:
        change(
            first,
            "INSERT INTO liaison_event_counters (tenant, last_sequence) "
            "SELECT 'tenant-' || number, 1 FROM generate_series(1, 20000) AS number",
        )
    with databases.borrow() as again, psycopg.connect(again) as connection:
        assert again == first
        assert connection.execute("SELECT pg_relation_size('liaison_event_counters')").fetchone() == (0,)


def test_a_test_may_end_all_connections(databases: ReusedDatabases, postgres: PostgresServer) -> None:
    for _ in range(2):
        with databases.borrow() as url:
            change(url, APPEND_ONLY)
            postgres.disconnect(url.partition("@/")[2].partition("?")[0])
    with databases.borrow() as again:
        assert again == url
        with psycopg.connect(again) as connection:
            assert connection.execute("SELECT count(*) FROM audit_entries").fetchone() == (0,)


def test_a_connection_that_was_left_open_is_ended(databases: ReusedDatabases) -> None:
    with databases.borrow() as first:
        left = psycopg.connect(first)
        left.execute("INSERT INTO liaison_event_counters (tenant, last_sequence) VALUES ('acme', 1)")
    with pytest.raises(psycopg.OperationalError):
        left.execute("SELECT 1")
    left.close()
    with databases.borrow() as again:
        assert again == first


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE outbox RENAME TO lost",
        "DROP TABLE outbox CASCADE",
        "ALTER TABLE outbox ALTER COLUMN seq DROP DEFAULT",
        "CREATE FUNCTION nothing() RETURNS integer LANGUAGE sql AS 'SELECT 1'",
        "ALTER TABLE audit_entries DISABLE TRIGGER ALL",
        "UPDATE journal_identity SET id = 'another'",
        "DELETE FROM alembic_version",
    ],
)
def test_one_that_cannot_be_made_what_it_was_is_not_used_again(databases: ReusedDatabases, statement: str) -> None:
    with databases.borrow() as first:
        original = content(first)
        change(first, statement)
    with databases.borrow() as other:
        assert other != first
        assert content(other) == original
