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
from cstp_grpc.modules.liaison.model import Event, EventFilter, EventType
from cstp_grpc.modules.liaison.sql_routing import SqlRoutingStore
from cstp_grpc.platform.storage.database import Database, UnsuitableDatabase, open_database
from cstp_grpc.platform.storage.migration import (
    build_alembic_config,
    current_revision,
    known_revisions,
    migrate_database,
    newest_revision,
)
from cstp_grpc.platform.storage.pagination import PageRequest
from cstp_grpc.platform.storage.unit_of_work import CONDITION, UnitOfWork
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


def test_intents_of_the_time_before_paths_are_kept(empty: Database) -> None:
    with empty.open_write_connection() as connection, connection.begin():
        command.upgrade(build_alembic_config(connection), "0002")
        connection.execute(
            text(
                "INSERT INTO intents (agent, correlation_id, content_hash, received_at, intent, stakes)"
                " VALUES ('ada', 'c-1', 'hash', '2026-02-04 12:00:00+00:00', 'Deploy', 'high')"
            )
        )
    migrate_database(empty)
    (intent,) = SqlIntentStore(empty).page(IntentFilter(), PageRequest()).items
    assert (intent.agent, intent.intent, intent.project, intent.paths) == ("ada", "Deploy", None, ())


def test_events_keep_their_sequences_and_each_tenant_goes_on_after_its_own(empty: Database) -> None:
    with empty.open_write_connection() as connection, connection.begin():
        command.upgrade(build_alembic_config(connection), "0006")
        for sequence, tenant in ((3, "acme"), (4, "umbrella"), (7, "acme")):
            connection.execute(
                text(
                    "INSERT INTO liaison_events (sequence, tenant, type, agent, occurred_at, data) VALUES"
                    " (:sequence, :tenant, 'session_opened', 'guide', '2026-02-04 12:00:00+00:00', '{}')"
                ),
                {"sequence": sequence, "tenant": tenant},
            )
    migrate_database(empty)
    store = SqlRoutingStore(empty)
    added = Event("acme", EventType.SESSION_CLOSED, "guide", datetime(2026, 2, 5, tzinfo=UTC))
    with empty.open_write_connection() as connection, connection.begin():
        assert [event.sequence for event in store.events(UnitOfWork(connection), EventFilter("acme"), 0, 10)] == [3, 7]
        assert store.last_sequence(UnitOfWork(connection), "umbrella") == 4
        assert store.add_event(UnitOfWork(connection), added).sequence == 8


def test_intents_of_the_time_before_revisions_are_the_first_and_can_be_revised(empty: Database) -> None:
    with empty.open_write_connection() as connection, connection.begin():
        command.upgrade(build_alembic_config(connection), "0006")
        row = (
            "INSERT INTO intents (agent, correlation_id, content_hash, received_at, intent, stakes, metadata, paths)"
            " VALUES (:agent, :correlation_id, 'hash', '2026-02-04 12:00:00+00:00', 'Deploy', 'high', '{}', '[\"a\"]')"
        )
        old = [{"agent": agent, "correlation_id": f"c-{number}"} for agent in ("ada", "bob") for number in range(3)]
        connection.execute(text(row), old)
        identifiers = connection.execute(text("SELECT id, agent, correlation_id FROM intents ORDER BY id")).all()
    migrate_database(empty)
    store = SqlIntentStore(empty)
    kept = store.page(IntentFilter(), PageRequest()).items
    assert [(each.revision, each.intent, each.metadata, each.paths) for each in kept] == [(1, "Deploy", {}, ("a",))] * 6
    with empty.open_write_connection() as connection, connection.begin():
        assert (
            connection.execute(text("SELECT id, agent, correlation_id FROM intents ORDER BY id")).all() == identifiers
        )
        assert store.insert_or_get(UnitOfWork(connection), kept[0]) == kept[0]
        revised = store.insert_or_get(UnitOfWork(connection), replace(kept[0], content_hash="other"))
    assert (revised.revision, revised.previous_revision) == (2, 1)


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


def test_a_database_of_a_newer_version_is_refused(database: Database) -> None:
    with database.open_write_connection() as connection, connection.begin():
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(UnsuitableDatabase, match="at migration 9999, which this version does not know"):
        migrate_database(database)
