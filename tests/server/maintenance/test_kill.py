"""Backups, restores and copies that are killed at any moment: each leaves the state before or the one after."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import func, insert, select

from cstp_grpc.platform.storage.database import open_database
from cstp_grpc.platform.storage.migration import migrate_database, read_revision
from cstp_grpc.server.maintenance.journal_tables import journal_tables
from tests.databases import PostgresServer, unique_name
from tests.killing import ROOT
from tests.server.maintenance.test_backup import write_config
from tests.server.maintenance.test_copy import example_row

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

KILLED = (-signal.SIGKILL, -signal.SIGALRM)
RANDOM_KILLS = 12
MOST_STEPS = 200


class CommandRunner:
    """Runs commands that are killed."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def run(self, *arguments: object, step: int | None = None, seconds: float | None = None) -> int:
        """Return the exit code of a command, or the negative number of the signal that ended it."""
        request = {"arguments": [str(each) for each in arguments], "step": step, "seconds": seconds}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def kill_everywhere(self, command: Callable[[], Sequence[object]], check: Callable[[], object]) -> int:
        """Kill a command before each of its steps and at random moments; check what it leaves, and count the kills.

        `command` returns the arguments of the next run; the steps must be the same for all runs.
        """
        begun, kills = time.monotonic(), 0
        for step in range(1, MOST_STEPS):
            ended = self.run(*command(), step=step)
            check()
            if ended not in KILLED:
                assert ended == 0
                break
            kills += 1
        else:
            pytest.fail("the command never ends")
        longest = (time.monotonic() - begun) / (kills + 1) * 1.5
        for _ in range(RANDOM_KILLS):
            ended = self.run(*command(), seconds=random.uniform(0.001, longest))
            assert ended in (0, *KILLED)
            check()
            kills += ended in KILLED
        return kills


@pytest.fixture
def runner() -> Iterator[CommandRunner]:
    command = [sys.executable, "-m", "tests.server.maintenance.killed_commands"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        yield CommandRunner(process)


@pytest.fixture
def new_url(database_kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], str]]:
    """Makes URLs of databases without tables."""
    if database_kind == "sqlite":
        yield lambda: f"sqlite:///{tmp_path / unique_name()}.db"
        return
    server: PostgresServer = request.getfixturevalue("postgres")
    made: list[str] = []

    def make() -> str:
        made.append(unique_name())
        server.create(made[-1], migrated=False)
        return server.url(made[-1])

    yield make
    for name in made:
        server.drop(name)


def fill(url: str, number: int) -> None:
    """Give each table of a database so many rows."""
    with closing(open_database(url, 1)) as database:
        migrate_database(database)
        with database.open_write_connection() as connection, connection.begin():
            for table in journal_tables():
                if table.name != "journal_identity":
                    connection.execute(insert(table), [example_row(table, each + 1) for each in range(number)])


def count_rows(url: str) -> set[int]:
    """Return the numbers of rows that the tables of a database have; none before it has tables."""
    with closing(open_database(url, 1)) as database, database.engine.connect() as connection:
        if read_revision(connection) is None:
            return set()
        if database.is_sqlite:
            assert connection.exec_driver_sql("PRAGMA integrity_check").scalar() == "ok"
        tables = [table for table in journal_tables() if table.name != "journal_identity"]
        return {connection.execute(select(func.count()).select_from(table)).scalar_one() for table in tables}


def test_a_killed_restore_leaves_the_old_journal_or_the_new_one(
    runner: CommandRunner, tmp_path: Path, new_url: Callable[[], str]
) -> None:
    urls = [new_url(), new_url()]
    folders = [tmp_path / "one", tmp_path / "two"]
    files = [write_config(folder, url) for folder, url in zip(folders, urls, strict=True)]
    saved = [tmp_path / "saved-1", tmp_path / "saved-2"]
    for number, url in enumerate(urls, 1):
        folder = folders[number - 1]
        folder.mkdir()
        (folder / "dev-token").write_text(f"token {number}")
        fill(url, number)
        assert runner.run("backup", saved[number - 1], "--config", files[number - 1]) == 0
    seen: set[str] = set()
    old, new = 1, 2

    def restore() -> Sequence[object]:
        return "restore", saved[new - 1], "--force", "--config", files[0]

    def check() -> None:
        nonlocal old, new
        found = count_rows(urls[0])
        assert found in ({old}, {new})
        seen.add("old" if found == {old} else "new")
        # Repeated, it is done, and what was killed has left nothing behind.
        assert runner.run(*restore()) == 0
        assert count_rows(urls[0]) == {new}
        assert (folders[0] / "dev-token").read_text() == f"token {new}"
        assert not [*folders[0].rglob("*.restoring*"), *tmp_path.glob("*.restoring*")]
        # The next run restores the other backup.
        old, new = new, old

    assert runner.kill_everywhere(restore, check) > 10
    assert seen == {"old", "new"}


def test_a_killed_backup_is_whole_or_none(runner: CommandRunner, tmp_path: Path, new_url: Callable[[], str]) -> None:
    url, source, saved = new_url(), tmp_path / "source", tmp_path / "saved"
    file = write_config(source, url)
    source.mkdir()
    (source / "dev-token").write_text("mine")
    fill(url, 2)
    numbers = iter(range(10_000))

    def check() -> None:
        if saved.exists():
            assert runner.run("restore", saved, "--check", "--config", file) == 0
            saved.rename(tmp_path / f"kept-{next(numbers)}")
        assert count_rows(url) == {2}

    assert runner.kill_everywhere(lambda: ("backup", saved, "--config", file), check) > 10
    assert runner.run("backup", saved, "--config", file) == 0
    assert not saved.with_name("saved.unfinished").exists()


def test_a_killed_copy_has_copied_all_or_nothing(
    runner: CommandRunner, tmp_path: Path, new_url: Callable[[], str]
) -> None:
    source = new_url()
    fill(source, 2)
    for round_number in range(RANDOM_KILLS):
        target, begun = new_url(), time.monotonic()
        if round_number == 0:
            assert runner.run("copy", "--from", source, "--to", target) == 0
            longest = time.monotonic() - begun
            continue
        ended = runner.run("copy", "--from", source, "--to", target, seconds=random.uniform(0.01, longest))
        assert ended in (0, *KILLED)
        if count_rows(target) != {2}:
            assert count_rows(target) in (set(), {0})
            assert runner.run("copy", "--from", source, "--to", target) == 0
        assert count_rows(target) == {2}
