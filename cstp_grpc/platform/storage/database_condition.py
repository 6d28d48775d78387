"""Observes the condition of a journal's database without changing anything: for operators."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path

from sqlalchemy import Connection, inspect, text

from cstp_grpc.common.lazy_dataclass import dataclass
from cstp_grpc.platform.storage.database import Database, translate_read_errors
from cstp_grpc.platform.storage.migration import read_revision


@dataclass(frozen=True, slots=True)
class DatabaseCondition:
    """The condition of a database."""

    name: str
    """SQLite with its file, or PostgreSQL with its version."""
    migration: str | None
    """None for an empty database."""
    damage: str | None = None
    """The findings of a check of all pages and indexes; None also without a check."""
    log_bytes: int = 0
    """The size of SQLite's write-ahead log."""
    clock_ahead: float = 0.0
    """Seconds by which the clock of a PostgreSQL server is ahead of this machine's."""
    connections_left: int | None = None
    """Free connections of a PostgreSQL server."""
    newest_entry: datetime | None = None
    """The latest instant in the audit trail."""


def observe_database(database: Database, *, thorough: bool) -> DatabaseCondition:
    """Return the condition of a database; `thorough` reads all pages of a SQLite file.

    Raises SQLAlchemyError if the database does not respond. The file of a SQLite database must exist.
    """
    with database.engine.connect() as connection:
        migration = read_revision(connection)
        if database.path is not None:
            name, damage = f"SQLite, {database.path}", find_damage(connection) if thorough else None
            log = Path(f"{database.path}-wal")
            newest = read_newest_entry(connection)
            log_bytes = log.stat().st_size if log.exists() else 0
            return DatabaseCondition(name, migration, damage, log_bytes, newest_entry=newest)
        version: str = connection.execute(text("SHOW server_version")).scalar_one()
        return DatabaseCondition(
            f"PostgreSQL {version}",
            migration,
            clock_ahead=measure_clock(connection),
            connections_left=count_connections_left(connection),
            newest_entry=read_newest_entry(connection),
        )


@dataclass(frozen=True, slots=True)
class DatabaseResponse:
    """The answer of a database to a small query."""

    latency_ms: float
    migration: str | None
    """None for an empty database."""


def measure_response(database: Database) -> DatabaseResponse:
    """Return how fast a database answers a small query. Raises QueryFailed."""
    begun = time.perf_counter()
    with translate_read_errors(logs_failures=False), database.engine.connect() as connection:
        migration = read_revision(connection)
    return DatabaseResponse((time.perf_counter() - begun) * 1000, migration)


def measure_size(database: Database) -> int | None:
    """Return the bytes of a SQLite file with its write-ahead log; None for other databases."""
    if database.path is None:
        return None
    files = (Path(database.path), Path(f"{database.path}-wal"))
    return sum(file.stat().st_size for file in files if file.exists())


def find_damage(connection: Connection) -> str | None:
    found = connection.execute(text("PRAGMA integrity_check(1)")).scalar()
    return None if found == "ok" else str(found)


def measure_clock(connection: Connection) -> float:
    """Return by how many seconds the clock of PostgreSQL is ahead of ours, to the accuracy of a round trip."""
    before = time.time()
    theirs: datetime = connection.execute(text("SELECT clock_timestamp()")).scalar_one()
    return theirs.timestamp() - (before + time.time()) / 2


def count_connections_left(connection: Connection) -> int:
    """Return the number of free connections of PostgreSQL for users without privileges."""
    query = text(
        "SELECT current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int "
        "- (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend')"
    )
    left: int = connection.execute(query).scalar_one()
    return left


def read_newest_entry(connection: Connection) -> datetime | None:
    """Return the latest instant in the audit trail; None if it is empty or missing."""
    if not inspect(connection).has_table("audit_entries"):
        return None
    found: datetime | str | None = connection.execute(text("SELECT max(timestamp) FROM audit_entries")).scalar()
    if found is None:
        return None
    instant = datetime.fromisoformat(found) if isinstance(found, str) else found
    return instant if instant.tzinfo else instant.replace(tzinfo=UTC)
