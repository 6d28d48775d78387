"""copy: all tables of one database in another, equal, all of them or nothing."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import JSON, Boolean, Double, LargeBinary, Table, Text, insert, select
from sqlalchemy.exc import DBAPIError

from cstp_grpc.client.cstp_client import CstpClient
from cstp_grpc.core.audit.checkpoint_keys import SigningKeyFile, TrustedKeys
from cstp_grpc.core.audit.checkpoints import KEY_FILE
from cstp_grpc.platform.storage.database import Database, open_database
from cstp_grpc.platform.storage.migration import migrate_database
from cstp_grpc.platform.storage.unit_of_work import UtcDateTime
from cstp_grpc.server.maintenance.journal_tables import journal_tables
from tests.cli.conftest import run_command
from tests.core.audit.kit import tampering, verify
from tests.databases import PostgresServer, write_journal
from tests.harness import TOKENS, running, settings
from tests.server.maintenance.test_backup import compare_databases, ids_of, recording
from tests.waiting import wait_until


@pytest.fixture
def other_url(database_kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of an empty database of the other kind."""
    if database_kind == "postgresql":
        yield f"sqlite:///{tmp_path / 'copied.db'}"
        return
    server: PostgresServer = request.getfixturevalue("postgres")
    with server.temporary_database(migrated=False) as url:
        yield url


def test_a_journal_moves_to_the_other_database_and_goes_on_there(
    database_url: str, other_url: str, tmp_path: Path
) -> None:
    source = settings(tmp_path / "source", storage={"url": database_url})
    with running(source) as app, recording(app) as acknowledged:
        wait_until(lambda: len(acknowledged) > 5, "some decisions are recorded")
        # Under load it is one state, though not the last one.
        early = run_command("copy", "--from", database_url, "--to", f"sqlite:///{tmp_path / 'early.db'}")
        assert early.exit_code == 0, early.output
    with running(settings(tmp_path / "early", storage={"url": f"sqlite:///{tmp_path / 'early.db'}"})) as app:
        assert ids_of(app) <= set(acknowledged)
    result = run_command("copy", "--from", database_url, "--to", other_url, "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["rows"]["decisions"] == len(acknowledged)
    with closing(open_database(database_url, 1)) as one, closing(open_database(other_url, 1)) as other:
        assert compare_databases(one, other, journal_tables()) == []
    with running(settings(tmp_path / "target", storage={"url": other_url})) as app:
        assert ids_of(app) == set(acknowledged)
        with CstpClient(f"grpc://{app.target}", TOKENS["alice"]) as client:
            added = client.record_decision("Recorded after the copy")
            client.check_guardrails("Checked after the copy")
            assert client.query_decisions("Recorded after the copy").decisions[0].id == added.id
    keys = [SigningKeyFile.load(tmp_path / folder / KEY_FILE).public_key for folder in ("source", "target")]
    with closing(open_database(other_url, 1)) as other:
        assert verify(other, keys=TrustedKeys.of(keys)).is_whole


def test_a_filled_database_is_not_copied_into(database_url: str, other_url: str) -> None:
    with closing(open_database(other_url, 1)) as other:
        migrate_database(other)
        with other.open_write_connection() as connection, connection.begin():
            table = next(table for table in journal_tables() if table.name == "liaison_event_counters")
            connection.execute(insert(table), {"tenant": "t", "last_sequence": 1})
    result = run_command("copy", "--from", database_url, "--to", other_url)
    assert result.exit_code == 1
    assert "not empty: liaison_event_counters has rows" in result.stderr


def test_what_goes_wrong_on_the_way_leaves_the_target_empty(
    database: Database, database_url: str, tmp_path: Path
) -> None:
    """A table that refuses its rows stops the copy after the others were written."""
    target = f"sqlite:///{tmp_path / 'copied.db'}"
    tables = journal_tables()
    with database.open_write_connection() as connection, connection.begin():
        for table in tables:
            if table.name != "journal_identity":
                connection.execute(insert(table), example_row(table, 1))
    with closing(open_database(target, 1)) as other:
        migrate_database(other)
        with other.open_write_connection() as connection, connection.begin():
            connection.exec_driver_sql(
                f"CREATE TRIGGER refuse BEFORE INSERT ON {tables[-1].name} BEGIN SELECT RAISE(ABORT, 'refused'); END"
            )
        assert run_command("copy", "--from", database_url, "--to", target).exit_code == 1
        with other.engine.connect() as connection:
            filled = [table.name for table in tables if connection.execute(select(table)).first() is not None]
        assert filled == ["journal_identity"]


@pytest.mark.parametrize(
    ("source", "target", "told"),
    [
        ("sqlite:///missing.db", "sqlite:///new.db", "there is no database"),
        ("mysql://host/db", "sqlite:///new.db", "--from: must begin with"),
        ("sqlite:///known.db", "nonsense", "--to: is not a database URL"),
        ("sqlite:///old.db", "sqlite:///new.db", "run `cstp migrate`"),
    ],
)
def test_wrong_databases_are_told(
    source: str, target: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_journal(tmp_path / "known.db")
    write_journal(tmp_path / "old.db")
    with closing(sqlite3.connect("old.db")) as old, old:
        old.execute("UPDATE alembic_version SET version_num = '0001'")
    result = run_command("copy", "--from", source, "--to", target)
    assert result.exit_code == 1
    assert told in result.stderr
    assert not (tmp_path / "missing.db").exists()


def test_a_table_of_others_is_told(tmp_path: Path) -> None:
    write_journal(tmp_path / "known.db")
    url = f"sqlite:///{tmp_path / 'known.db'}"
    with closing(open_database(url, 1)) as known, known.open_write_connection() as connection, connection.begin():
        connection.exec_driver_sql("CREATE TABLE of_others (id INTEGER)")
    result = run_command("copy", "--from", url, "--to", f"sqlite:///{tmp_path / 'new.db'}")
    assert result.exit_code == 1
    assert "not copied: of_others" in result.stderr


def test_every_column_of_every_table_survives_the_way_there_and_back(
    database: Database, database_url: str, other_url: str, tmp_path: Path
) -> None:
    """Rows with a value in each column, whose numbers go on after ones that are gone."""
    unchained = {"chain_id": None, "chain_position": None, "previous_hash": None, "entry_hash": None}
    entries = next(table for table in journal_tables() if table.name == "audit_entries")
    with tampering(database) as connection:
        for table in journal_tables():
            if table.name != "journal_identity":
                # The first entry of the trail is one of before there were chains.
                first = example_row(table, 1) | (unchained if table is entries else {})
                connection.execute(insert(table), [first, example_row(table, 2)])
    back = f"sqlite:///{tmp_path / 'back.db'}"
    for source, target in ((database_url, other_url), (other_url, back)):
        result = run_command("copy", "--from", source, "--to", target)
        assert result.exit_code == 0, result.output
    with closing(open_database(other_url, 1)) as there, closing(open_database(back, 1)) as again:
        assert compare_databases(database, there, journal_tables()) == []
        assert compare_databases(database, again, journal_tables()) == []
        for copied in (there, again):
            outbox = next(table for table in journal_tables() if table.name == "outbox")
            with copied.open_write_connection() as connection, connection.begin():
                added = connection.execute(insert(outbox).values(decision_id="dec-new").returning(outbox.c.seq))
                assert added.scalar_one() == 3
            with pytest.raises(DBAPIError), copied.open_write_connection() as connection, connection.begin():
                connection.execute(insert(entries), example_row(entries, 3) | unchained)


def example_row(table: Table, number: int) -> dict[str, Any]:
    """Return a row with a value in each column, by which rows refer to those of the same number in other tables."""
    return {column.name: example_value(table, column.name, number) for column in table.columns}


def example_value(table: Table, name: str, number: int) -> object:
    match table.columns[name].type:
        case UtcDateTime():
            return datetime(2026, 1, number, 12, 30, 59, 123456, UTC)
        case JSON():
            return {"b": [1, 2.5, None, "\u2028"], "a": number}
        case LargeBinary():
            return bytes([0, 255, number]).ljust(32 if name.endswith("_hash") else 0)
        case Boolean():
            return number == 1
        case Double():
            return 0.1 + number
        case Text():
            # With what languages order and escape in ways of their own; equal in all tables, for references.
            return f"\N{LATIN SMALL LETTER A WITH DIAERESIS} '\\\n\"{number}"
    return number
