"""Backups of a journal, written while servers use it.

A backup is a folder: a manifest, the database as one file, and the files of the data folder that cannot be rebuilt. It
gets its name when all of it is on disk, so that a folder with that name is a complete backup.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Literal

from cstp_grpc.common.lazy_dataclass import asdict, dataclass
from cstp_grpc.common.version import VERSION
from cstp_grpc.platform.config import Settings
from cstp_grpc.platform.config.environment import process_environment
from cstp_grpc.platform.storage.database import Database, open_database
from cstp_grpc.platform.storage.postgresql_dump import PostgresqlTools, write_postgresql_dump
from cstp_grpc.platform.storage.sqlite_snapshot import (
    LOG_SUFFIXES,
    SnapshotFailed,
    check_sqlite_snapshot,
    sync_file,
    write_sqlite_snapshot,
)
from cstp_grpc.server.deployment import INDEX_FOLDER, MATRIX_FILE, RULEBOOK_COPY
from cstp_grpc.server.wiring.embedding import CONVERTED_FOLDER

MANIFEST: Final = "manifest.json"
FORMAT: Final = 1
"""The format of backups; a reader refuses those that it does not know."""
DATABASE_FILES: Final = {"sqlite": "journal.db", "postgresql": "journal.dump"}
"""The file of the database in a backup, by the kind of the database."""
FILES_FOLDER: Final = "files"
"""The folder of a backup with files of the data folder."""

UNFINISHED: Final = ".unfinished"
"""The suffix of an incomplete backup."""
STAGED: Final = ".restoring"
"""The suffix of a file that is about to replace another."""

REBUILT_FOLDERS: Final = frozenset({INDEX_FOLDER, CONVERTED_FOLDER})
REBUILT_FILES: Final = frozenset({"lock", RULEBOOK_COPY, MATRIX_FILE, f"{MATRIX_FILE}.new"})
REBUILT_SUFFIXES: Final = (".db", *LOG_SUFFIXES, ".lock", ".log", ".next", ".writing", STAGED, UNFINISHED)
"""Files that are not copied: a server rebuilds them, or they are locks or logs; the journal is saved separately."""

CHUNK_BYTES: Final = 1 << 20

ProgressStart = Callable[[str, int], Callable[[int], object]]
"""Called with the name and the bytes of the next step; returns a function that is called with the bytes done."""

DatabaseKind = Literal["sqlite", "postgresql"]


@dataclass(frozen=True, slots=True)
class SavedFile:
    """A file of a backup by its path within it."""

    path: str
    bytes: int
    sha256: str
    mode: int
    """Its permissions."""


@dataclass(frozen=True, slots=True)
class BackupManifest:
    """The contents of a backup."""

    format: int
    version: str
    """The version of the program that wrote it."""
    created_at: str
    database: DatabaseKind
    migration: str
    rows: Mapping[str, int]
    """The number of rows of each table."""
    files: tuple[SavedFile, ...]
    """All files but the manifest, that of the database first."""

    @property
    def size(self) -> int:
        return sum(file.bytes for file in self.files)


def write_backup(
    settings: Settings, folder: Path, created_at: datetime, start_progress: ProgressStart
) -> BackupManifest:
    """Write a backup into a new folder while the journal may be in use, and check that it can be restored.

    Raises SnapshotFailed, UnsuitableDatabase and OSError, and SQLAlchemyError if the database does not respond.
    """
    if folder.exists():
        raise SnapshotFailed(f"{folder}: exists already; a backup is a folder of its own")
    if folder.resolve().is_relative_to(settings.data_dir.resolve()):
        # The next backup would contain this one.
        raise SnapshotFailed(f"{folder}: is in the data folder; save it elsewhere, best on another disk")
    unfinished = folder.with_name(folder.name + UNFINISHED)
    # One that was interrupted; a second command that writes it at this moment fails, and leaves no whole backup.
    if unfinished.exists():
        shutil.rmtree(unfinished)
    # It contains the data and the credentials of agents.
    unfinished.mkdir(mode=0o700, parents=True)
    kind, migration, rows = save_database(settings, unfinished, start_progress)
    saved = [DATABASE_FILES[kind], *save_files(settings.data_dir, unfinished)]
    files = tuple(describe_file(unfinished, path) for path in saved)
    manifest = BackupManifest(FORMAT, VERSION, created_at.isoformat(), kind, migration, rows, files)
    write_manifest(unfinished, manifest)
    unfinished.rename(folder)
    sync_file(folder.parent)
    return manifest


def save_database(
    settings: Settings, folder: Path, start_progress: ProgressStart
) -> tuple[DatabaseKind, str, Mapping[str, int]]:
    """Save the database into a backup; return its kind, its migration and the rows of each table."""
    with closing(open_database(settings.storage_url, 1)) as database:
        if database.path is None:
            dump = folder / DATABASE_FILES["postgresql"]
            advance = start_progress("Dumping", 0)
            return "postgresql", *write_postgresql_dump(postgresql_tools(database), dump, advance)
        snapshot = folder / DATABASE_FILES["sqlite"]
        size = database.path.stat().st_size if database.path.exists() else 0
        advance = since_last_report(start_progress("Copying", size))
        write_sqlite_snapshot(database.path, snapshot, advance)
        return "sqlite", *check_sqlite_snapshot(snapshot)


def save_files(data_dir: Path, folder: Path) -> Iterator[str]:
    """Copy the other files of a data folder into a backup, and yield the paths within the backup."""
    for path in sorted(data_dir.rglob("*")):
        relative = path.relative_to(data_dir)
        if path.is_symlink() or not path.is_file() or is_rebuilt(relative):
            continue
        target = folder / FILES_FOLDER / relative
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        shutil.copy2(path, target)
        sync_file(target)
        yield target.relative_to(folder).as_posix()


def is_rebuilt(path: Path) -> bool:
    """Return whether a server rebuilds a file of its data folder, or the file belongs to the journal."""
    return path.parts[0] in REBUILT_FOLDERS or path.name in REBUILT_FILES or path.name.endswith(REBUILT_SUFFIXES)


def read_backup(folder: Path, start_progress: ProgressStart) -> BackupManifest:
    """Read the manifest of a backup and compare all its files with it. Raises SnapshotFailed."""
    manifest = read_manifest(folder)
    advance = start_progress("Checking", manifest.size)
    for saved in manifest.files:
        path = folder / saved.path
        if not path.resolve().is_relative_to(folder.resolve()) or not path.is_file():
            raise SnapshotFailed(f"{path}: is missing from the backup")
        if hash_file(path, advance) != saved.sha256:
            raise SnapshotFailed(f"{path}: was damaged or changed since the backup")
    return manifest


def write_manifest(folder: Path, manifest: BackupManifest) -> None:
    path = folder / MANIFEST
    path.touch(mode=0o600)
    path.write_text(json.dumps(asdict(manifest), indent=2) + "\n")
    for written in (path, *(each for each in folder.rglob("*") if each.is_dir()), folder):
        sync_file(written)


def read_manifest(folder: Path) -> BackupManifest:
    """Read the manifest of a backup. Raises SnapshotFailed."""
    try:
        content: dict[str, Any] = json.loads((folder / MANIFEST).read_bytes())
        if content["format"] != FORMAT:
            raise SnapshotFailed(f"{folder}: was written by a newer version of this program; restore it with that one")
        files = tuple(SavedFile(**file) for file in content.pop("files"))
        manifest = BackupManifest(**content, files=files)
    except FileNotFoundError as error:
        raise SnapshotFailed(f"{folder}: is no backup: it has no {MANIFEST}") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise SnapshotFailed(f"{folder}: is no backup: {MANIFEST} is not what a backup has") from error
    if any(".." in Path(file.path).parts for file in files):
        # Within the backup such a path may lead to a file, and within the data folder out of it.
        raise SnapshotFailed(f"{folder}: is no backup: {MANIFEST} names a file outside of it")
    if manifest.database not in DATABASE_FILES or DATABASE_FILES[manifest.database] not in {f.path for f in files}:
        raise SnapshotFailed(f"{folder}: is no backup: {MANIFEST} names no database")
    return manifest


def describe_file(folder: Path, path: str) -> SavedFile:
    whole = folder / path
    status = whole.stat()
    return SavedFile(path, status.st_size, hash_file(whole, lambda _: None), stat.S_IMODE(status.st_mode))


def hash_file(path: Path, on_progress: Callable[[int], object]) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
            on_progress(len(chunk))
    return digest.hexdigest()


def since_last_report(advance: Callable[[int], object]) -> Callable[[int], object]:
    """Return a function that takes totals and passes on their growth."""
    reached = 0

    def report(total: int) -> None:
        nonlocal reached
        advance(total - reached)
        reached = total

    return report


def postgresql_tools(database: Database) -> PostgresqlTools:
    return PostgresqlTools(database, process_environment())
