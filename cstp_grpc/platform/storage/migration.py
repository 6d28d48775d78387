"""Migrates a database to the tables that this version needs."""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sqlalchemy import Connection, column, func, inspect, select, table

from cstp_grpc.platform.storage.database import Database, UnsuitableDatabase

if TYPE_CHECKING:
    from alembic.config import Config


logger = logging.getLogger(__name__)

MIGRATION_LOCK = 0x6373_7470_0001
"""The PostgreSQL advisory lock that lets one replica migrate at a time: `cstp` in ASCII, and a number of ours."""
MIGRATIONS: Final = Path(__file__).parent / "migrations"
VERSION_TABLE: Final = table("alembic_version", column("version_num"))
"""Where Alembic keeps the migration that a database is at."""


def migrate_database(database: Database, turn: AbstractContextManager[object] | None = None) -> None:
    """Migrate a database to the newest revision, all or nothing, while holding `turn`.

    Several processes may call it at once: one migrates, the others wait. Raises UnsuitableDatabase if the database is
    newer than this version or of a development version, and SQLAlchemyError if it does not respond.
    """
    with turn or nullcontext(), database.open_write_connection() as connection, connection.begin():
        if connection.dialect.name == "postgresql":
            connection.execute(select(func.pg_advisory_xact_lock(MIGRATION_LOCK)))
        present, newest = read_revision(connection), newest_revision()
        if present == newest:
            return
        if present is not None and present not in known_revisions():
            origin = (
                "it was used by a newer version"
                if present > newest
                else "it was made by a development version, and only databases of releases are migrated"
            )
            raise UnsuitableDatabase(
                f"storage.url: the database is at migration {present}, which this version does not know; {origin}"
            )
        # Not loaded before it is needed: Alembic takes long, and most starts find everything as it must be.
        from alembic import command

        command.upgrade(build_alembic_config(connection), newest)
        logger.info("the database went from migration %s to %s", present or "none", newest)


def current_revision(database: Database) -> str | None:
    """Return the migration revision of a database; None if it is empty."""
    with database.engine.connect() as connection:
        return read_revision(connection)


def newest_revision() -> str:
    return max(known_revisions())


def known_revisions() -> set[str]:
    """Return the migration revisions of this version, whose numbers give their order."""
    return {file.name.partition("_")[0] for file in (MIGRATIONS / "versions").glob("[0-9]*_*.py")}


def build_alembic_config(connection: Connection | None = None) -> Config:
    from alembic.config import Config

    config = Config()
    # Alembic reads `%` as the start of a reference.
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    return config


def read_revision(connection: Connection) -> str | None:
    """Return the migration revision of a connection's database, or None."""
    if not inspect(connection).has_table(VERSION_TABLE.name):
        return None
    found: str | None = connection.scalar(select(VERSION_TABLE.c.version_num))
    return found
