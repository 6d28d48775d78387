"""Snapshots of a SQLite database while others write to it, and replacing it while nobody does."""

from __future__ import annotations

import os
import secrets
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final

from cstp_grpc.platform.storage.database import BUSY_MILLISECONDS, DAMAGED_DATABASE, NOT_A_DATABASE, PRIMARY_CODE
from cstp_grpc.platform.storage.migration import VERSION_TABLE, known_revisions, newest_revision

PROGRESS_STEPS: Final = 100_000
"""Steps of SQLite's virtual machine between two reports of progress, some milliseconds."""

LOG_SUFFIXES: Final = ("-wal", "-shm", "-journal")
"""The suffixes that SQLite adds to the name of a database for its other files."""


class SnapshotFailed(Exception):
    """A database cannot be copied, checked or replaced; the message says why, and names the file."""


def write_sqlite_snapshot(source: Path, target: Path, on_progress: Callable[[int], object]) -> None:
    """Write a consistent state of a database into a new file, even if others write to the database meanwhile.

    `on_progress` is called with the bytes written so far. Raises SnapshotFailed.
    """
    if not source.is_file():
        raise SnapshotFailed(f"{source}: there is no database")
    target.touch(mode=0o600)
    try:
        with closing(open_connection(source)) as connection:
            connection.set_progress_handler(lambda: report_size(target, on_progress), PROGRESS_STEPS)
            # One read transaction, which keeps no writer waiting. Unlike SQLite's backup interface it does not begin
            # again after each commit, and it leaves behind pages with content that was deleted.
            connection.execute("VACUUM INTO ?", [str(target)])
    except sqlite3.Error as error:
        raise SnapshotFailed(f"{source}: {describe_sqlite_error(error)}") from error
    sync_file(target)


def check_sqlite_snapshot(path: Path) -> tuple[str, dict[str, int]]:
    """Check every page, index and reference of a snapshot; return its migration, and the rows of each table.

    Raises SnapshotFailed.
    """
    try:
        with closing(open_connection(path)) as connection:
            for pragma in ("integrity_check", "foreign_key_check"):
                problems = [row for row in connection.execute(f"PRAGMA {pragma}") if row != ("ok",)]
                if problems:
                    raise SnapshotFailed(f"{path}: the database is damaged: {pragma} finds {problems[0]}")
            migration = read_migration(connection, path)
            return migration, {table: count_rows(connection, table) for table in list_tables(connection)}
    except sqlite3.Error as error:
        raise SnapshotFailed(f"{path}: {describe_sqlite_error(error)}") from error


def rename_journal(path: Path) -> None:
    """Give the journal in a snapshot a new name, so that revisions of other journals are not mistaken for its own.

    Raises SnapshotFailed.
    """
    try:
        with closing(open_connection(path)) as connection:
            connection.execute("UPDATE journal_identity SET id = ?", [secrets.token_hex(6)])
    except sqlite3.Error as error:
        raise SnapshotFailed(f"{path}: {describe_sqlite_error(error)}") from error
    sync_file(path)


def replace_sqlite_database(path: Path, replacement: Path) -> None:
    """Replace a database that nobody has open by a checked snapshot, in one step. Raises SnapshotFailed.

    The caller holds the lock on the data folder, so that nobody opens the database meanwhile.
    """
    if path.exists():
        close_sqlite_log(path)
    # A log that stays would be read into the new database. There is one only if the old database cannot be opened.
    remove_sqlite_logs(path)
    replacement.replace(path)
    sync_file(path.parent)


def remove_sqlite_logs(path: Path) -> None:
    """Remove the files that SQLite left next to a database that is about to be replaced."""
    for suffix in LOG_SUFFIXES:
        Path(f"{path}{suffix}").unlink(missing_ok=True)


def close_sqlite_log(path: Path) -> None:
    """Write the log of a database into its file, which only works while nobody else has it open.

    A damaged database is left as it is. Raises SnapshotFailed if somebody has it open.
    """
    try:
        with closing(open_connection(path, busy_milliseconds=0)) as connection:
            # In this mode SQLite needs the lock that every open connection of others shares.
            connection.execute("PRAGMA locking_mode = EXCLUSIVE")
            connection.execute("BEGIN EXCLUSIVE")
            connection.execute("COMMIT")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    except sqlite3.DatabaseError as error:
        if getattr(error, "sqlite_errorcode", 0) & PRIMARY_CODE in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            raise SnapshotFailed(f"{path}: is open in another process; stop the server first") from error
        if type(error) is not sqlite3.DatabaseError:
            raise SnapshotFailed(f"{path}: {describe_sqlite_error(error)}") from error


def open_connection(path: Path, busy_milliseconds: int = BUSY_MILLISECONDS) -> sqlite3.Connection:
    """Open a file that exists, without transactions that the driver begins by itself."""
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode=rw", uri=True, timeout=busy_milliseconds / 1000, isolation_level=None
    )
    connection.execute("PRAGMA fullfsync = ON")
    connection.execute("PRAGMA temp_store = MEMORY")
    return connection


def read_migration(connection: sqlite3.Connection, path: Path) -> str:
    """Return the migration of a database. Raises SnapshotFailed if this version does not know it."""
    if VERSION_TABLE.name not in list_tables(connection):
        raise SnapshotFailed(f"{path}: is not a journal of this program")
    ((found,),) = connection.execute(f"SELECT version_num FROM {VERSION_TABLE.name}")  # noqa: S608 - a constant
    return require_known_migration(str(found), path)


def require_known_migration(found: str, path: Path) -> str:
    """Return a migration. Raises SnapshotFailed if this version does not know it."""
    if found not in known_revisions():
        raise SnapshotFailed(
            f"{path}: is at migration {found}, and this version knows those up to {newest_revision()}; "
            "use the version that wrote it, or a newer one"
        )
    return found


def list_tables(connection: sqlite3.Connection) -> list[str]:
    query = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite~_%' ESCAPE '~' ORDER BY name"
    return [name for (name,) in connection.execute(query)]


def count_rows(connection: sqlite3.Connection, table: str) -> int:
    count: int = connection.execute(f'SELECT count(*) FROM "{table}"').fetchone()[0]  # noqa: S608 - from the schema
    return count


def describe_sqlite_error(error: sqlite3.Error) -> str:
    if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_NOTADB:
        return NOT_A_DATABASE
    # As in `is_damage_error`: the base class itself stands for damage.
    return DAMAGED_DATABASE if type(error) is sqlite3.DatabaseError else str(error)


def report_size(path: Path, on_progress: Callable[[int], object]) -> int:
    """Report the size of a file, and return 0, which lets SQLite go on."""
    on_progress(path.stat().st_size if path.exists() else 0)
    return 0


def sync_file(path: Path) -> None:
    """Return when the content of a file, or the names in a folder, are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
