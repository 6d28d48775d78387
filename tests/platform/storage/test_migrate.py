"""Migrations."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import inspect, text
from sqlalchemy.exc import DBAPIError

from cstp_grpc.contract.enums import Outcome
from cstp_grpc.core.decisions.model import DecisionReview
from cstp_grpc.core.decisions.sql_history import SqlHistoryStore
from cstp_grpc.core.intents.model import IntentFilter
from cstp_grpc.core.intents.sql_store import SqlIntentStore
from cstp_grpc.platform.storage.database import Database, UnsuitableDatabase, open_database
from cstp_grpc.platform.storage.migration import (
    build_alembic_config,
    current_revision,
    known_revisions,
    migrate_database,
    newest_revision,
)
from cstp_grpc.platform.storage.pagination import PageRequest
from cstp_grpc.platform.storage.unit_of_work import CONDITION
from tests.databases import ALL_TABLES, POOL_SIZE


@pytest.fixture
def empty(empty_database_url: str) -> Iterator[Database]:
    database = open_database(empty_database_url, POOL_SIZE)
    yield database
    database.close()


def test_the_migrated_schema_is_that_of_the_tables(database: Database) -> None:
    with database.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True})
        assert compare_metadata(context, ALL_TABLES) == []
    assert partial_indexes(database) == {
        index.name for table in ALL_TABLES.tables.values() for index in table.indexes if CONDITION in index.info
    }


def partial_indexes(database: Database) -> set[str | None]:
    """Return the indexes of the database over some rows only, which Alembic does not compare."""
    inspector = inspect(database.engine)
    return {
        index["name"]
        for table in ALL_TABLES.tables
        for index in inspector.get_indexes(table)
        if f"{database.dialect.name}_where" in index.get("dialect_options", {})
    }


def test_the_migrations_follow_each_other_in_the_order_of_their_files() -> None:
    scripts = ScriptDirectory.from_config(build_alembic_config())
    assert [script.revision for script in scripts.walk_revisions()] == sorted(known_revisions(), reverse=True)
    assert scripts.get_current_head() == newest_revision()


def test_an_empty_database_is_brought_to_the_newest_migration(empty: Database) -> None:
    assert current_revision(empty) is None
    migrate_database(empty)
    assert current_revision(empty) == newest_revision()
    assert set(inspect(empty.engine).get_table_names()) == {*ALL_TABLES.tables, "alembic_version"}


def test_a_database_that_is_up_to_date_is_left_alone(database: Database) -> None:
    migrate_database(database)
    assert current_revision(database) == newest_revision()


def test_intents_of_0_1_0_are_private_and_open(empty: Database) -> None:
    with empty.open_write_connection() as connection, connection.begin():
        command.upgrade(build_alembic_config(connection), "0015")
        connection.execute(
            text(
                "INSERT INTO intents (agent, correlation_id, content_hash, received_at, intent, stakes)"
                " VALUES ('ada', 'c-1', 'hash', '2026-02-04 12:00:00+00:00', 'Deploy', 'high')"
            )
        )
    migrate_database(empty)
    (intent,) = SqlIntentStore(empty).page(IntentFilter(), PageRequest()).items
    assert (intent.agent, intent.intent, intent.visibility, intent.closing) == ("ada", "Deploy", "private", None)


def test_reviews_of_the_time_before_their_history_are_the_first(empty: Database) -> None:
    with empty.open_write_connection() as connection, connection.begin():
        command.upgrade(build_alembic_config(connection), "0015")
        row = text(
            "INSERT INTO decisions (id, agent, content_hash, title, stated_status, status, outcome, confidence, notes,"
            " date, reviewed_date, reasons, tags, visibility, revision, created_at, updated_at, reason_texts) VALUES"
            " (:id, 'ada', 'hash', 'Deploy', 'decided', 'reviewed', 'partial', 0.7, 'slow', :at, :reviewed, '[]', '[]',"
            " 'private', :revision, :at, :at, '[]')"
        )
        at = "2026-02-04 12:00:00+00:00"
        for number, reviewed in enumerate([at, at, None]):
            values = {"id": f"dec-{number}", "at": at, "reviewed": reviewed, "revision": number}
            connection.execute(row, values)
        entry = text(
            "INSERT INTO audit_entries (timestamp, event, requesting_agent, request_id, evaluated, decision_id) VALUES"
            " (:at, 'decision_reviewed', :agent, 'r-1', 0, 'dec-0')"
        )
        for agent in ("bob", "cleo"):
            connection.execute(entry, {"at": at, "agent": agent})
    migrate_database(empty)
    histories = [SqlHistoryStore(empty).read_history(f"dec-{number}", 10, 0).reviews for number in range(3)]
    review = DecisionReview("cleo", Outcome.PARTIAL, datetime(2026, 2, 4, 12, tzinfo=UTC), "slow", 0.7)
    assert histories == [(review,), (replace(review, reviewer=None),), ()]


def test_several_replicas_may_start_at_once(empty: Database, empty_database_url: str) -> None:
    databases = [open_database(empty_database_url, POOL_SIZE) for _ in range(4)]
    with ThreadPoolExecutor(len(databases)) as starting:
        list(starting.map(migrate_database, databases))
    assert current_revision(empty) == newest_revision()
    for database in databases:
        database.close()


def test_a_migration_that_fails_leaves_nothing(empty: Database) -> None:
    with empty.open_write_connection() as connection, connection.begin():
        connection.execute(text("CREATE TABLE intents (id INTEGER)"))
    with pytest.raises(DBAPIError):
        migrate_database(empty)
    assert current_revision(empty) is None
    assert inspect(empty.engine).get_table_names() == ["intents"]


@pytest.mark.parametrize(
    ("migration", "origin"), [("9999", "by a newer version"), ("0028", "by a development version")]
)
def test_a_database_of_an_unknown_version_is_refused(database: Database, migration: str, origin: str) -> None:
    with database.open_write_connection() as connection, connection.begin():
        connection.execute(text("UPDATE alembic_version SET version_num = :migration"), {"migration": migration})
    with pytest.raises(
        UnsuitableDatabase, match=f"at migration {migration}, which this version does not know; .*{origin}"
    ):
        migrate_database(database)
    assert current_revision(database) == migration
