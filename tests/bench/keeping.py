"""Section `keeping`: backups, restores and copies of a journal beside what the databases bring along for them."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
from collections.abc import Callable, Mapping
from contextlib import closing
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from cstp_grpc.platform.config import Settings, load_settings
from cstp_grpc.platform.storage.sqlite_snapshot import sync_file
from cstp_grpc.server.maintenance.backup import write_backup
from cstp_grpc.server.maintenance.journal_copy import copy_journal
from cstp_grpc.server.maintenance.restore import restore_backup
from tests.bench.cpu_time import run_time
from tests.bench.memory import MANY
from tests.bench.results import Better
from tests.bench.run import Run
from tests.databases import PostgresMissing, PostgresServer, postgres_server

JOURNAL = "journal.db"
RAW = "raw"
"""The yardstick of the ratios of a round."""


def measure_keeping(run: Run) -> None:
    """Measure on a SQLite file, then on a PostgreSQL of its own with the same journal, which syncs nothing to disk."""
    source = run.decisions(MANY)
    run.note(f"a journal of {(source / JOURNAL).stat().st_size / 1e6:.0f} MB on SQLite")
    measure_sqlite(run, source)
    try:
        with postgres_server() as server:
            measure_postgresql(run, source, server)
    except PostgresMissing as error:
        run.skip("postgresql-", str(error))


def measure_sqlite(run: Run, source: Path) -> None:
    """Measure on a SQLite file, beside copying that file and SQLite's own backup of it."""
    journal = source / JOURNAL
    for number in range(run.rounds):
        folder = new_folder(run, f"sqlite-{number}")
        add_round(
            run,
            "sqlite",
            {
                RAW: partial(copy_synced, journal, folder / "copied.db"),
                "own-backup": partial(back_up_by_sqlite, journal, folder / "own.db"),
                "backup": partial(back_up, journal_settings(source), folder / "backup"),
                "restore": partial(restore, journal_settings(folder / "restored"), folder / "backup"),
                "copy": partial(copy, f"sqlite:///{journal}", f"sqlite:///{folder / 'other.db'}"),
            },
        )


def measure_postgresql(run: Run, source: Path, server: PostgresServer) -> None:
    """Measure on PostgreSQL, beside its own programs."""
    journal = f"sqlite:///{source / JOURNAL}"
    server.create("full", migrated=False)
    full = server.url("full")
    copy(journal, full)
    for number in range(run.rounds):
        folder, names = new_folder(run, f"postgresql-{number}"), [f"{kind}{number}" for kind in ("own", "ours", "copy")]
        for name in names:
            server.create(name, migrated=False)
        own, ours, copied = (server.url(name) for name in names)
        dump = folder / "own.dump"
        add_round(
            run,
            "postgresql-save",
            {
                RAW: partial(run_tool, "pg_dump", "--format=custom", f"--file={dump}", f"--dbname={full}"),
                "backup": partial(back_up, journal_settings(folder / "data", full), folder / "backup"),
                "copy": partial(copy, full, f"sqlite:///{folder / 'other.db'}"),
            },
        )
        add_round(
            run,
            "postgresql-load",
            {
                RAW: partial(run_tool, "pg_restore", f"--dbname={own}", str(dump)),
                "restore": partial(restore, journal_settings(folder / "restored", ours), folder / "backup"),
                "copy": partial(copy, journal, copied),
            },
        )


def new_folder(run: Run, name: str) -> Path:
    """Return an empty folder for a round."""
    run.progress(name)
    folder = run.folder / "keeping" / name
    folder.mkdir(parents=True)
    return folder


def add_round(run: Run, title: str, ways: Mapping[str, Callable[[], object]]) -> None:
    """Run each way once, one after the other; add its seconds, and its ratio to the raw one."""
    seconds = {name: run_time(act) for name, act in ways.items()}
    for name, spent in seconds.items():
        run.add(f"{title}-{name}.seconds", "s", Better.LOWER, [spent])
        if name != RAW:
            run.add(f"{title}-{name}.wall", "x", Better.LOWER, [spent / seconds[RAW]])


def journal_settings(data_dir: Path, url: str | None = None) -> Settings:
    """Return the settings of a journal: in its data folder, or at a URL."""
    data_dir.mkdir(exist_ok=True)
    return load_settings(None, data_dir=data_dir, storage={} if url is None else {"url": url})


def back_up(settings: Settings, folder: Path) -> None:
    """Write a backup as `cstp backup` does, which checks it."""
    write_backup(settings, folder, datetime.now(UTC), without_progress)


def restore(settings: Settings, folder: Path) -> None:
    """Restore a backup as `cstp restore` does."""
    restore_backup(settings, folder, without_progress, force=False)


def copy(source: str, target: str) -> None:
    """Copy a journal as `cstp copy` does."""
    copy_journal(source, target, without_progress)


def without_progress(what: str, total: int) -> Callable[[int], object]:
    """Show no progress."""
    return lambda _: None


def copy_synced(source: Path, target: Path) -> None:
    """Copy a file to disk, as who stops the server may."""
    shutil.copyfile(source, target)
    sync_file(target)


def back_up_by_sqlite(source: Path, target: Path) -> None:
    """Back up a file by SQLite's own interface, as `.backup` of its shell does."""
    with closing(sqlite3.connect(source)) as connection, closing(sqlite3.connect(target)) as other:
        connection.backup(other)


def run_tool(*command: str) -> None:
    """Run a program of PostgreSQL, which must succeed."""
    subprocess.run(command, check=True)
