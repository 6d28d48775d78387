"""Copies of a whole journal into another database."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing

from cstp_grpc.platform.storage.database import Database, UnsuitableDatabase, open_database, parse_database_url
from cstp_grpc.platform.storage.sqlite_snapshot import SnapshotFailed
from cstp_grpc.platform.storage.table_copy import copy_tables, count_source_rows
from cstp_grpc.server.maintenance.backup import ProgressStart
from cstp_grpc.server.maintenance.journal_tables import journal_tables


def copy_journal(source_url: str, target_url: str, start_progress: ProgressStart) -> Mapping[str, int]:
    """Copy all tables of one database into another, which is empty or new; return the rows of each table.

    Raises SnapshotFailed, and SQLAlchemyError if a database does not respond.
    """
    tables = journal_tables()
    with (
        closing(open_named_database("--from", source_url)) as source,
        closing(open_named_database("--to", target_url)) as target,
    ):
        if source.path is not None and not source.path.is_file():
            raise SnapshotFailed(f"--from: {source.path}: there is no database")
        advance = start_progress("Copying", count_source_rows(source, tables))
        return copy_tables(source, target, tables, advance)


def open_named_database(option: str, url: str) -> Database:
    """Open the database that an option names. Raises SnapshotFailed for a URL of another kind."""
    try:
        parse_database_url(url)
        return open_database(url, 2)
    except UnsuitableDatabase as error:
        raise SnapshotFailed(str(error).replace("storage.url", option)) from error
