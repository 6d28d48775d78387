"""backup and restore: one whole state of a journal under load, checked before it replaces anything."""

from __future__ import annotations

import json
import shutil
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from cstp_grpc.client.cstp_client import CstpClient
from cstp_grpc.platform import config
from cstp_grpc.platform.storage.database import Database, open_database
from cstp_grpc.platform.storage.migration import VERSION_TABLE, migrate_database
from cstp_grpc.platform.storage.table_copy import Tables, copied_tables, digest_table
from cstp_grpc.server.app import App
from cstp_grpc.server.maintenance.journal_tables import journal_tables
from tests.cli.conftest import Invoke, enter_home, run_command
from tests.databases import ALL_TABLES, PostgresServer, write_journal
from tests.harness import TOKENS, running, settings
from tests.waiting import wait_until


def compare_databases(one: Database, other: Database, tables: Tables) -> list[str]:
    """Return the names of the tables whose rows differ."""
    with one.engine.connect() as first, other.engine.connect() as second:
        return [
            table.name for table in copied_tables(tables) if digest_table(first, table) != digest_table(second, table)
        ]


@pytest.fixture
def invoke() -> Invoke:
    return run_command


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "home"
    folder.mkdir()
    enter_home(monkeypatch, folder)
    return folder


def settings_on(folder: Path, url: str | None) -> config.Settings:
    """Return settings of a server with a data folder and a database; without a URL its journal is in the folder."""
    return settings(folder, **({} if url is None else {"storage": {"url": url}}))


def write_config(folder: Path, url: str | None) -> Path:
    """Write the configuration file of the same server for commands."""
    content: dict[str, Any] = {"data_dir": str(folder)}
    if url is not None:
        content["storage"] = {"url": url}
    path = folder.parent / f"{folder.name}.yaml"
    path.write_text(json.dumps(content))
    return path


@pytest.fixture
def source_url(database_kind: str, request: pytest.FixtureRequest) -> str | None:
    return None if database_kind == "sqlite" else request.getfixturevalue("database_url")


@pytest.fixture
def new_url(database_kind: str, request: pytest.FixtureRequest) -> Iterator[str | None]:
    """The URL of a database without tables; none for SQLite, whose file is made in the data folder."""
    if database_kind == "sqlite":
        yield None
        return
    server: PostgresServer = request.getfixturevalue("postgres")
    with server.temporary_database(migrated=False) as url:
        yield url


@contextmanager
def recording(app: App) -> Iterator[list[str]]:
    """Record decisions, announce and check without a pause for the length of a block; yield the ids acknowledged."""
    acknowledged: list[str] = []
    stopping = threading.Event()

    def record() -> None:
        with CstpClient(f"grpc://{app.target}", TOKENS["alice"]) as client:
            while not stopping.is_set():
                number = len(acknowledged)
                acknowledged.append(client.record_decision(f"Decision {number}", tags=["a", "b"]).id)
                client.announce_intent(f"Do number {number}", correlation_id=f"c-{number}")
                client.check_guardrails(f"Check number {number}")

    threads = [threading.Thread(target=record) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        yield acknowledged
    finally:
        stopping.set()
        for thread in threads:
            thread.join()


def ids_of(app: App) -> set[str]:
    with CstpClient(f"grpc://{app.target}", TOKENS["alice"]) as client:
        return {decision.id for decision in client.list_decisions()}


def open_files(folder: Path) -> list[str]:
    """Return the files of a folder that others than their owner may read."""
    return [str(path) for path in folder.rglob("*") if path.is_file() and path.stat().st_mode & 0o077]


def test_a_backup_and_what_is_restored_are_private(
    invoke: Invoke, tmp_path: Path, source_url: str | None, new_url: str | None
) -> None:
    source, restored, backup = tmp_path / "source", tmp_path / "restored", tmp_path / "backup"
    with running(settings_on(source, source_url)) as app, CstpClient(app.target, TOKENS["alice"]) as client:
        client.record_decision("Mine")
        assert invoke("backup", backup, "--config", write_config(source, source_url)).exit_code == 0
    assert open_files(backup) == []
    result = invoke("restore", backup, "--config", write_config(restored, new_url))
    assert result.exit_code == 0, result.output
    with running(settings_on(restored, new_url)):
        assert open_files(restored) == []


def test_a_backup_under_load_is_one_state_that_a_server_serves(
    invoke: Invoke, tmp_path: Path, source_url: str | None, new_url: str | None
) -> None:
    source, restored = tmp_path / "source", tmp_path / "restored"
    with running(settings_on(source, source_url)) as app, recording(app) as acknowledged:
        (source / "dev-token").write_text("a token of mine")
        wait_until(lambda: len(acknowledged) > 10, "some decisions are recorded")
        before = set(acknowledged)
        result = invoke("backup", tmp_path / "saved", "--json", "--config", write_config(source, source_url))
        assert result.exit_code == 0, result.output
    everything = set(acknowledged)
    report = json.loads(result.stdout)
    assert report["rows"]["decisions"] >= len(before)
    result = invoke("restore", tmp_path / "saved", "--config", write_config(restored, new_url))
    assert result.exit_code == 0, result.output
    with running(settings_on(restored, new_url)) as app:
        found = ids_of(app)
        assert before <= found <= everything
        assert len(found) == report["rows"]["decisions"]
        with CstpClient(f"grpc://{app.target}", TOKENS["alice"]) as client:
            # What was not in the backup is gone, and its numbers are given to others without anything being mixed up.
            added = client.record_decision("Recorded after the restore")
            assert client.query_decisions("Recorded after the restore").decisions[0].id == added.id
    assert (restored / "dev-token").read_text() == "a token of mine"


def test_what_is_restored_equals_what_was_saved(
    invoke: Invoke, tmp_path: Path, source_url: str | None, new_url: str | None
) -> None:
    source, restored = tmp_path / "source", tmp_path / "restored"
    with running(settings_on(source, source_url)) as app, recording(app) as acknowledged:
        wait_until(lambda: len(acknowledged) > 5, "some decisions are recorded")
    assert invoke("backup", tmp_path / "saved", "--config", write_config(source, source_url)).exit_code == 0
    assert invoke("restore", tmp_path / "saved", "--config", write_config(restored, new_url)).exit_code == 0
    with open_both(source, source_url, restored, new_url) as (one, other):
        assert compare_databases(one, other, journal_tables()) == []


@contextmanager
def open_both(
    source: Path, source_url: str | None, restored: Path, new_url: str | None
) -> Iterator[tuple[Database, Database]]:
    urls = [settings_on(source, source_url).storage_url, settings_on(restored, new_url).storage_url]
    with closing(open_database(urls[0], 1)) as one, closing(open_database(urls[1], 1)) as other:
        yield one, other


def test_nothing_is_replaced_without_force_nor_under_a_server(
    invoke: Invoke, tmp_path: Path, source_url: str | None
) -> None:
    source = tmp_path / "source"
    file = write_config(source, source_url)
    with running(settings_on(source, source_url)) as app:
        with CstpClient(f"grpc://{app.target}", TOKENS["alice"]) as client:
            first = client.record_decision("Before the backup").id
            assert invoke("backup", tmp_path / "saved", "--config", file).exit_code == 0
            second = client.record_decision("After the backup").id
            result = invoke("restore", tmp_path / "saved", "--force", "--config", file)
            assert result.exit_code == 1
            assert "in use by" in result.stderr
            assert {decision.id for decision in client.list_decisions()} == {first, second}
        # Checking writes nothing, so that a server may run.
        assert invoke("restore", tmp_path / "saved", "--check", "--config", file).exit_code == 0
    result = invoke("restore", tmp_path / "saved", "--config", file)
    assert result.exit_code == 1
    assert "--force" in result.stderr
    with running(settings_on(source, source_url)) as app:
        assert ids_of(app) == {first, second}
    assert invoke("restore", tmp_path / "saved", "--force", "--config", file).exit_code == 0
    with running(settings_on(source, source_url)) as app:
        assert ids_of(app) == {first}


def test_a_server_elsewhere_on_the_same_database_is_not_overwritten(
    invoke: Invoke, tmp_path: Path, source_url: str | None
) -> None:
    """Its data folder is another one, so that the lock on ours does not tell."""
    source, elsewhere = tmp_path / "source", tmp_path / "elsewhere"
    url = source_url or f"sqlite:///{tmp_path / 'shared.db'}"
    with closing(open_database(url, 1)) as database:
        migrate_database(database)
    with running(settings_on(elsewhere, url)) as app, CstpClient(f"grpc://{app.target}", TOKENS["alice"]) as client:
        kept = client.record_decision("To be kept").id
        assert invoke("backup", tmp_path / "saved", "--config", write_config(source, url)).exit_code == 0
        result = invoke("restore", tmp_path / "saved", "--force", "--config", write_config(source, url))
        assert result.exit_code == 1
        assert "stop" in result.stderr
        assert [decision.id for decision in client.list_decisions()] == [kept]


@pytest.mark.parametrize("part", ["database", "manifest", "file", "lost"])
def test_a_damaged_backup_replaces_nothing(invoke: Invoke, tmp_path: Path, source_url: str | None, part: str) -> None:
    source, saved = tmp_path / "source", tmp_path / "saved"
    file = write_config(source, source_url)
    with running(settings_on(source, source_url)) as app, CstpClient(f"grpc://{app.target}", TOKENS["alice"]) as client:
        kept = client.record_decision("To be kept").id
        (source / "dev-token").write_text("mine")
    assert invoke("backup", saved, "--config", file).exit_code == 0
    database = next(path for path in saved.iterdir() if path.name.startswith("journal."))
    match part:
        case "database":
            content = bytearray(database.read_bytes())
            content[len(content) // 2] ^= 0xFF
            database.write_bytes(content)
        case "manifest":
            (saved / "manifest.json").write_text('{"format": 1}')
        case "file":
            (saved / "files" / "dev-token").write_text("of somebody else")
        case "lost":
            database.unlink()
    for options in (["--check"], ["--force"]):
        result = invoke("restore", saved, *options, "--config", file)
        assert result.exit_code == 1, result.output
        assert str(saved) in result.stderr
    with running(settings_on(source, source_url)) as app:
        assert ids_of(app) == {kept}


def test_a_backup_that_lies_about_its_rows_is_not_restored(
    invoke: Invoke, tmp_path: Path, source_url: str | None, new_url: str | None
) -> None:
    source, saved, restored = tmp_path / "source", tmp_path / "saved", tmp_path / "restored"
    with running(settings_on(source, source_url)):
        pass
    assert invoke("backup", saved, "--config", write_config(source, source_url)).exit_code == 0
    manifest = json.loads((saved / "manifest.json").read_text())
    manifest["rows"]["decisions"] += 1
    (saved / "manifest.json").write_text(json.dumps(manifest))
    assert invoke("restore", saved, "--config", write_config(restored, new_url)).exit_code == 1
    assert not (restored / "journal.db").exists()
    if new_url is not None:
        with psycopg.connect(new_url) as connection:
            assert connection.execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'").fetchall() == [(0,)]


def test_a_backup_never_overwrites_and_an_interrupted_one_is_none(invoke: Invoke, tmp_path: Path) -> None:
    source, saved = tmp_path / "source", tmp_path / "saved"
    with running(settings_on(source, None)):
        pass
    file = write_config(source, None)
    (tmp_path / "saved.unfinished").mkdir()
    (tmp_path / "saved.unfinished" / "journal.db").write_text("half of it")
    result = invoke("restore", tmp_path / "saved.unfinished", "--force", "--config", file)
    assert result.exit_code == 1
    assert "is no backup" in result.stderr
    assert invoke("backup", saved, "--config", file).exit_code == 0
    assert not (tmp_path / "saved.unfinished").exists()
    result = invoke("backup", saved, "--config", file)
    assert result.exit_code == 1
    assert "exists already" in result.stderr


def test_a_database_that_is_missing_or_none_of_ours_is_told(invoke: Invoke, tmp_path: Path) -> None:
    result = invoke("backup", tmp_path / "saved", "--config", write_config(tmp_path / "nowhere", None))
    assert result.exit_code == 1
    assert "there is no database" in result.stderr
    assert not (tmp_path / "saved").exists()
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "journal.db").write_text("a text, and no database at all")
    result = invoke("backup", tmp_path / "saved", "--config", write_config(tmp_path / "source", None))
    assert result.exit_code == 1
    assert "not a SQLite database" in result.stderr


def test_a_damaged_journal_is_replaced(invoke: Invoke, tmp_path: Path) -> None:
    source = tmp_path / "source"
    file = write_config(source, None)
    with running(settings_on(source, None)) as app, CstpClient(f"grpc://{app.target}", TOKENS["alice"]) as client:
        kept = client.record_decision("To be kept").id
    assert invoke("backup", tmp_path / "saved", "--config", file).exit_code == 0
    (source / "journal.db").write_bytes(b"not a database any more" * 1000)
    (source / "journal.db-wal").write_bytes(b"what is left of a log")
    assert invoke("restore", tmp_path / "saved", "--force", "--config", file).exit_code == 0
    with running(settings_on(source, None)) as app:
        assert ids_of(app) == {kept}


def test_what_a_killed_restore_left_is_not_mixed_into_the_next(invoke: Invoke, tmp_path: Path) -> None:
    """SQLite would roll the journal of the other copy back into this one."""
    source, file = tmp_path / "source", write_config(tmp_path / "source", None)
    source.mkdir()
    write_journal(source / "journal.db")
    assert invoke("backup", tmp_path / "saved", "--config", file).exit_code == 0
    staged, killed = source / "journal.db.restoring", tmp_path / "killed.db"
    with closing(sqlite3.connect(killed, isolation_level=None)) as connection:
        connection.execute("PRAGMA cache_size = 1")
        connection.execute("CREATE TABLE other (content TEXT)")
        connection.executemany("INSERT INTO other VALUES (?)", [("x" * 4000,)] * 200)
        connection.execute("BEGIN")
        # More than the cache holds, so that the journal is on disk before the transaction ends.
        connection.execute("UPDATE other SET content = 'y' || content")
        shutil.copyfile(f"{killed}-journal", f"{staged}-journal")
    result = invoke("restore", tmp_path / "saved", "--force", "--config", file)
    assert result.exit_code == 0, result.output
    assert not list(source.glob("*.restoring*"))


def test_the_journal_stays_when_other_files_cannot_be_restored(invoke: Invoke, tmp_path: Path) -> None:
    source, file = tmp_path / "source", write_config(tmp_path / "source", None)
    source.mkdir()
    write_journal(source / "journal.db")
    for name in ("agents.yaml", "dev-token"):
        (source / name).write_text("mine")
    assert invoke("backup", tmp_path / "saved", "--config", file).exit_code == 0
    before = (source / "journal.db").read_bytes()
    (source / "dev-token.restoring").mkdir()
    assert invoke("restore", tmp_path / "saved", "--force", "--config", file).exit_code == 1
    assert (source / "journal.db").read_bytes() == before
    assert not (source / "agents.yaml.restoring").exists()


def test_a_backup_is_not_saved_into_what_it_saves(invoke: Invoke, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    write_journal(source / "journal.db")
    (tmp_path / "linked").symlink_to(source)
    result = invoke("backup", tmp_path / "linked" / "saved", "--config", write_config(source, None))
    assert result.exit_code == 1
    assert "is in the data folder" in result.stderr


def test_what_a_server_makes_again_and_its_logs_are_not_saved(invoke: Invoke, tmp_path: Path) -> None:
    source, saved = tmp_path / "source", tmp_path / "saved"
    (source / "chroma").mkdir(parents=True)
    write_journal(source / "journal.db")
    for name in ("chroma/index.bin", "chroma.lock", "chroma.log", "lock", "dev-token"):
        (source / name).write_text("content")
    assert invoke("backup", saved, "--config", write_config(source, None)).exit_code == 0
    assert [path.name for path in (saved / "files").rglob("*")] == ["dev-token"]


def test_a_manifest_leads_nowhere_else(invoke: Invoke, tmp_path: Path) -> None:
    source, saved, file = tmp_path / "source", tmp_path / "saved", write_config(tmp_path / "source", None)
    source.mkdir()
    write_journal(source / "journal.db")
    (source / "dev-token").write_text("mine")
    assert invoke("backup", saved, "--config", file).exit_code == 0
    (saved / "files" / "dev-token").rename(saved / "dev-token")
    manifest = (saved / "manifest.json").read_text()
    (saved / "manifest.json").write_text(manifest.replace("files/dev-token", "files/../dev-token"))
    result = invoke("restore", saved, "--force", "--config", file)
    assert result.exit_code == 1
    assert "outside of it" in result.stderr
    assert not (tmp_path / "dev-token").exists()


def test_all_tables_of_a_migrated_database_are_known(database: Database) -> None:
    with closing(database.engine.connect()) as connection:
        from sqlalchemy import inspect

        present = set(inspect(connection).get_table_names())
    assert present == {table.name for table in journal_tables()} | {VERSION_TABLE.name}
    assert {table.name for table in journal_tables()} == set(ALL_TABLES.tables)
