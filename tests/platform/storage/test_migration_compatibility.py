"""Each migration leaves a database that servers of the version before go on to use."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import pytest
from alembic import command
from sqlalchemy import Connection, Engine, create_engine, inspect, text

from cstp_grpc.platform.storage.migration import build_alembic_config, known_revisions


def describe_tables(engine: Engine) -> Mapping[str, Mapping[str, tuple[str, bool, bool]]]:
    """Return the columns of each table: the type, whether it may be absent, and whether an insert may leave it out."""
    found = inspect(engine)
    return {
        table: {
            column["name"]: (
                str(column["type"]),
                bool(column["nullable"]),
                bool(column["nullable"] or column.get("default") is not None or column.get("autoincrement") is True),
            )
            for column in found.get_columns(table)
        }
        for table in found.get_table_names()
    }


def unique_keys(engine: Engine) -> Mapping[str, set[tuple[str | None, ...]]]:
    """Return the columns of each unique index and constraint, by table."""
    found = inspect(engine)
    return {
        table: {tuple(index["column_names"]) for index in found.get_indexes(table) if index["unique"]}
        | {tuple(constraint["column_names"]) for constraint in found.get_unique_constraints(table)}
        for table in found.get_table_names()
    }


def incompatibilities(engine: Engine, change: Callable[[Connection], object]) -> Iterator[str]:
    """Make a change, and yield what a server that does not know it could not live with."""
    before, keys_before = describe_tables(engine), unique_keys(engine)
    with engine.begin() as connection:
        change(connection)
    after, keys_after = describe_tables(engine), unique_keys(engine)
    for table, columns in before.items():
        if table not in after:
            yield f"{table} is gone"
            continue
        for column, (kind, nullable, _) in columns.items():
            if column not in after[table]:
                yield f"{table}.{column} is gone"
            elif after[table][column][:2] != (kind, nullable):
                yield f"{table}.{column} is another column than it was"
        for column in after[table].keys() - columns.keys():
            if not after[table][column][2]:
                yield f"{table}.{column} must be given"
        for key in keys_after[table] - keys_before[table]:
            yield f"{table} must be unique by {', '.join(map(str, key))}"


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    engine = create_engine(f"sqlite:///{tmp_path / 'journal.db'}")
    yield engine
    engine.dispose()


def upgrade_to(revision: str, connection: Connection) -> None:
    command.upgrade(build_alembic_config(connection), revision)


def test_migrations_only_add_what_a_server_of_the_version_before_can_live_with(engine: Engine) -> None:
    found = {
        revision: "; ".join(problems)
        for revision in sorted(known_revisions())
        if (problems := list(incompatibilities(engine, partial(upgrade_to, revision))))
    }
    assert found == {}


@pytest.mark.parametrize(
    ("statement", "problems"),
    [
        ("DROP TABLE entries", ["entries is gone"]),
        ("ALTER TABLE entries DROP COLUMN note", ["entries.note is gone"]),
        ("ALTER TABLE entries RENAME COLUMN note TO remark", ["entries.note is gone"]),
        ("CREATE UNIQUE INDEX once ON entries (note)", ["entries must be unique by note"]),
        ("ALTER TABLE entries ADD COLUMN agent TEXT NOT NULL DEFAULT ''", []),
        ("ALTER TABLE entries ADD COLUMN agent TEXT", []),
        ("CREATE TABLE further (id TEXT NOT NULL)", []),
        ("CREATE INDEX by_note ON entries (note)", []),
    ],
)
def test_the_rule_finds_what_breaks_an_older_server(engine: Engine, statement: str, problems: list[str]) -> None:
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE entries (id TEXT NOT NULL, note TEXT)"))
    assert list(incompatibilities(engine, lambda connection: connection.execute(text(statement)))) == problems


def test_the_rule_finds_a_column_that_inserts_must_give(engine: Engine) -> None:
    def replace_table(connection: Connection) -> None:
        connection.execute(text("DROP TABLE entries"))
        connection.execute(text("CREATE TABLE entries (id TEXT NOT NULL, note TEXT NOT NULL, agent TEXT NOT NULL)"))

    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE entries (id TEXT NOT NULL, note TEXT)"))
    assert list(incompatibilities(engine, replace_table)) == [
        "entries.note is another column than it was",
        "entries.agent must be given",
    ]
