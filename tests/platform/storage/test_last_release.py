"""A journal that the server of the last release wrote is upgraded, and everything in it is still there."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

import pytest
import sqlalchemy as sa
from alembic import command

from cstp_grpc.client import CstpClient
from cstp_grpc.common.version import VERSION
from cstp_grpc.platform.storage import migration
from cstp_grpc.platform.storage.database import open_database
from tests.databases import ALL_TABLES, POOL_SIZE
from tests.harness import TOKENS, running, settings
from tests.installations import ROOT
from tests.platform.storage.released import HEADING, NOTES, TITLE
from tests.platform.storage.test_migration_compatibility import describe_tables

JOURNAL: Final = ROOT / "released" / "journal.sql"
RELEASED: Final = JOURNAL.read_text().partition("\n")[0].removeprefix(HEADING)


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """The journal of the last release, restored with SQLite."""
    path = tmp_path / "released.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(JOURNAL.read_text())
    return path


@pytest.fixture
def source(journal: Path) -> Iterator[sa.Engine]:
    engine = sa.create_engine(f"sqlite:///{journal}")
    yield engine
    engine.dispose()


def read_revision(source: sa.Engine) -> str:
    """Return the migration that the journal of the last release is at."""
    with source.connect() as connection:
        found = migration.read_revision(connection)
    assert found is not None
    return found


def copy_journal(source: sa.Engine, url: str) -> None:
    """Copy the journal of the last release into an empty database, which is brought to its migration first."""
    with (
        closing(open_database(url, POOL_SIZE)) as database,
        source.connect() as reading,
        database.open_write_connection() as writing,
        writing.begin(),
    ):
        command.upgrade(migration.build_alembic_config(writing), read_revision(source))
        # The migrations gave the journal a name.
        writing.execute(sa.text("DELETE FROM journal_identity"))
        released = describe_tables(source)
        for table in ALL_TABLES.sorted_tables:
            columns = released.get(table.name, {})
            old = sa.table(table.name, *(sa.column(each, table.c[each].type) for each in columns))
            if rows := [dict(row) for row in reading.execute(sa.select(old)).mappings()] if columns else []:
                writing.execute(sa.insert(old), rows)
                let_numbers_go_on(writing, table)


def let_numbers_go_on(connection: sa.Connection, table: sa.Table) -> None:
    """Let PostgreSQL number further rows after those that were copied, as SQLite does by itself."""
    if connection.dialect.name == "postgresql" and (column := table.autoincrement_column) is not None:
        sequence = f"pg_get_serial_sequence('{table.name}', '{column.name}')"
        connection.execute(sa.text(f"SELECT setval({sequence}, (SELECT max({column.name}) FROM {table.name}))"))


def test_the_migrations_lead_through_the_tables_of_the_last_release(source: sa.Engine, tmp_path: Path) -> None:
    made = sa.create_engine(f"sqlite:///{tmp_path / 'made.db'}")
    with made.begin() as connection:
        command.upgrade(migration.build_alembic_config(connection), read_revision(source))
    assert describe_tables(made) == describe_tables(source)
    made.dispose()


@pytest.mark.above_stores
@pytest.mark.both_databases
def test_a_server_upgrades_the_journal_of_the_last_release(
    source: sa.Engine, empty_database_url: str, tmp_path: Path
) -> None:
    copy_journal(source, empty_database_url)
    wanted = settings(tmp_path / "data", storage={"url": empty_database_url})
    with running(wanted) as app, CstpClient(f"grpc://{app.target}", TOKENS["alice"]) as client:
        (found, *_) = client.query_decisions(TITLE).decisions
        assert found.title == TITLE
        kept = client.get_decision(found.id)
        assert (list(kept.tags), kept.notes) == (["auth"], NOTES)
        assert [review.notes for review in kept.history.reviews] == [NOTES]
        assert len(list(client.list_decisions())) == 2
        assert [intent.intent for intent in client.list_intents()] == [TITLE]
        assert len(list(client.list_audit_entries())) >= 8
        (session,) = client.liaison.list_sessions()
        assert [message.content for message in client.liaison.list_messages(session.id)] == ["Why do logins fail?"]
        assert client.record_decision("Roll the auth service out again").id


def test_what_is_compared_with_is_the_last_release() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text()
    released = re.findall(r"^## (\S+) - \d{4}-\d\d-\d\d$", changelog, re.MULTILINE)
    # Until the tag of this version is there, the release before is the last one.
    last = next(version for version in released if "## Unreleased" in changelog or version != VERSION)
    assert last == RELEASED, (
        f"CHANGELOG.md says that {last} is released, but released/ has {RELEASED}. After its tag, run `make released`; "
        'before, write new lines into its section and not into "Unreleased"'
    )
