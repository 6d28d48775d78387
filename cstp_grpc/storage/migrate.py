"""Bringing a database to the tables that this version needs."""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sqlalchemy import Connection, Engine, column, func, inspect, select, table

from cstp_grpc.storage.engine import UnsuitableDatabase, for_writing

if TYPE_CHECKING:
    from alembic.config import Config

logger = logging.getLogger(__name__)

MIGRATION_LOCK = 0x6373_7470_0001
"""The PostgreSQL advisory lock that lets one replica migrate at a time."""
MIGRATIONS: Final = Path(__file__).parent / "migrations"
VERSION_TABLE: Final = table("alembic_version", column("version_num"))
"""Where Alembic keeps the migration that a database is at."""


def migrate(engine: Engine, turn: AbstractContextManager[object] | None = None) -> None:
    """Bring a database to the newest migration, all or nothing, while holding `turn`.

    Several may do so at once: one does it, the others wait. Raises UnsuitableDatabase where the database is newer than
    this version, and SQLAlchemyError where it does not answer.
    """
    with turn or nullcontext(), for_writing(engine) as connection, connection.begin():
        if connection.dialect.name == "postgresql":
            connection.execute(select(func.pg_advisory_xact_lock(MIGRATION_LOCK)))
        present, newest = revision_of(connection), head()
        if present == newest:
            return
        if present is not None and present not in known_revisions():
            raise UnsuitableDatabase(
                f"storage.url: the database is at migration {present}, which this version does not know; "
                "it was used by a newer version"
            )
        # Not loaded before it is needed: Alembic takes long, and most starts find everything as it must be.
        from alembic import command

        command.upgrade(configuration(connection), newest)
        logger.info("the database went from migration %s to %s", present or "none", newest)


def current(engine: Engine) -> str | None:
    """Return the migration that a database is at; None for an empty one."""
    with engine.connect() as connection:
        return revision_of(connection)


def head() -> str:
    """Return the newest migration."""
    return max(known_revisions())


def known_revisions() -> set[str]:
    """Return the migrations of this version. They follow each other in the order of the numbers in their names."""
    return {file.name.partition("_")[0] for file in (MIGRATIONS / "versions").glob("[0-9]*_*.py")}


def configuration(connection: Connection | None = None) -> Config:
    """Return what Alembic must know, in the place of an ini file."""
    from alembic.config import Config

    config = Config()
    # Alembic reads `%` as the start of a reference.
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    return config


def revision_of(connection: Connection) -> str | None:
    """Return the migration that a connection's database is at."""
    if not inspect(connection).has_table(VERSION_TABLE.name):
        return None
    found: str | None = connection.scalar(select(VERSION_TABLE.c.version_num))
    return found
