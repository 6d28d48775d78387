"""Restores of backups: checked before anything is replaced, and only without a running server."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from cstp_grpc.platform.config import Settings
from cstp_grpc.platform.storage import sqlite_snapshot
from cstp_grpc.platform.storage.database import Database, open_database
from cstp_grpc.platform.storage.locks import DataDirLock
from cstp_grpc.platform.storage.migration import VERSION_TABLE
from cstp_grpc.platform.storage.postgresql_dump import check_postgresql_dump, restore_postgresql_dump
from cstp_grpc.server.maintenance import backup
from cstp_grpc.server.maintenance.journal_tables import journal_tables


def check_backup(settings: Settings, folder: Path, start_progress: backup.ProgressStart) -> backup.BackupManifest:
    """Check that a backup is complete and fits this version, and write nothing. Raises SnapshotFailed."""
    manifest = backup.read_backup(folder, start_progress)
    saved = folder / backup.DATABASE_FILES[manifest.database]
    if manifest.database == "sqlite":
        check_rows(saved, manifest)
    else:
        with closing(open_database(settings.storage_url, 1)) as database:
            check_postgresql_dump(backup.postgresql_tools(database), saved, manifest.migration)
    return manifest


def restore_backup(
    settings: Settings, folder: Path, start_progress: backup.ProgressStart, *, force: bool
) -> backup.BackupManifest:
    """Check a backup, and replace the configured database and files with it, while no server uses them.

    Without `force` nothing is overwritten. A killed restore can be repeated. Raises SnapshotFailed, AlreadyRunning,
    UnsuitableDatabase and OSError, and SQLAlchemyError if the database does not respond.
    """
    manifest = backup.read_backup(folder, start_progress)
    # Held until the end: no server starts on this folder meanwhile.
    with DataDirLock(settings.data_dir), closing(open_database(settings.storage_url, 1)) as database:
        if (manifest.database == "sqlite") != database.is_sqlite:
            raise sqlite_snapshot.SnapshotFailed(
                f"{folder}: is a backup of {manifest.database}, and storage.url names another kind of database; "
                "restore it into one of its kind, then use `cstp copy`"
            )
        if not force and (present := next(find_replaced(settings, database, manifest), None)) is not None:
            raise sqlite_snapshot.SnapshotFailed(f"{present}: exists already; --force replaces it")
        try:
            # A full disk is noticed before the database is replaced.
            stage_files(settings.data_dir, folder, manifest)
            if database.path is not None:
                restore_sqlite(database.path, folder, manifest)
            else:
                restore_postgresql(database, folder, manifest, start_progress, force=force)
            replace_files(settings.data_dir, manifest)
        finally:
            discard_files(settings.data_dir, manifest)
    return manifest


def find_replaced(settings: Settings, database: Database, manifest: backup.BackupManifest) -> Iterator[Path]:
    targets = [settings.data_dir / relative for relative, _ in data_files(manifest)]
    for path in ([] if database.path is None else [database.path]) + targets:
        if path.exists():
            yield path


def restore_sqlite(path: Path, folder: Path, manifest: backup.BackupManifest) -> None:
    """Replace a database with the snapshot of a backup."""
    staged = staged_path(path)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # The SQLite log of a killed restore would be rolled back into the copy, which has other pages.
    sqlite_snapshot.remove_sqlite_logs(staged)
    try:
        staged.unlink(missing_ok=True)
        staged.touch(mode=0o600)
        shutil.copyfile(folder / backup.DATABASE_FILES["sqlite"], staged)
        # The copy and not the backup, since servers will read the copy.
        check_rows(staged, manifest)
        sqlite_snapshot.rename_journal(staged)
        sqlite_snapshot.replace_sqlite_database(path, staged)
    finally:
        staged.unlink(missing_ok=True)


def restore_postgresql(
    database: Database,
    folder: Path,
    manifest: backup.BackupManifest,
    start_progress: backup.ProgressStart,
    *,
    force: bool,
) -> None:
    """Replace the contents of a database with the dump of a backup."""
    dump, tools = folder / backup.DATABASE_FILES["postgresql"], backup.postgresql_tools(database)
    check_postgresql_dump(tools, dump, manifest.migration)
    ours = {VERSION_TABLE.name, *(table.name for table in journal_tables())}
    advance = start_progress("Restoring", 0)
    restore_postgresql_dump(tools, dump, manifest.rows, ours, force=force, on_progress=advance)


def stage_files(data_dir: Path, folder: Path, manifest: backup.BackupManifest) -> None:
    """Write the files of a backup into the data folder, each next to the file that it will replace."""
    for relative, saved in data_files(manifest):
        target = data_dir / relative
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        staged = staged_path(target)
        # Not the file of an earlier attempt, whose permissions may be wider while the content is written.
        staged.unlink(missing_ok=True)
        staged.touch(mode=0o600)
        shutil.copyfile(folder / saved.path, staged)
        staged.chmod(saved.mode)
        sqlite_snapshot.sync_file(staged)


def replace_files(data_dir: Path, manifest: backup.BackupManifest) -> None:
    """Move the files of a backup to their places in the data folder, each in one step."""
    for relative, _ in data_files(manifest):
        target = data_dir / relative
        staged_path(target).replace(target)
        sqlite_snapshot.sync_file(target.parent)


def discard_files(data_dir: Path, manifest: backup.BackupManifest) -> None:
    """Remove files of a backup that were not moved to their places."""
    for relative, _ in data_files(manifest):
        if (staged := staged_path(data_dir / relative)).is_file():
            staged.unlink()


def staged_path(path: Path) -> Path:
    """Return the path for a file that is about to replace another."""
    return path.with_name(path.name + backup.STAGED)


def data_files(manifest: backup.BackupManifest) -> Iterator[tuple[Path, backup.SavedFile]]:
    for saved in manifest.files:
        path = Path(saved.path)
        if path.parts[0] == backup.FILES_FOLDER:
            yield path.relative_to(backup.FILES_FOLDER), saved


def check_rows(snapshot: Path, manifest: backup.BackupManifest) -> None:
    """Check that a snapshot is intact and has the rows that the manifest counts. Raises SnapshotFailed."""
    migration, rows = sqlite_snapshot.check_sqlite_snapshot(snapshot)
    if migration != manifest.migration or rows != manifest.rows:
        raise sqlite_snapshot.SnapshotFailed(f"{snapshot}: has not what the manifest of the backup says")
