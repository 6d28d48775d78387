"""Columns and indexes as migrations write them. Released migrations use this notation: it may grow, never change."""

from __future__ import annotations

from typing import Any, Final

import sqlalchemy as sa
from alembic import op
from sqlalchemy.types import TypeEngine

KINDS: Final[dict[str, TypeEngine[Any]]] = {
    # Compared byte by byte on every database, so that listings have the same order on each.
    "identifier": sa.Text().with_variant(sa.Text(collation="C"), "postgresql"),
    # SQLite numbers rows by itself only where the key is INTEGER, which holds 64 bits there.
    "serial": sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
    "instant": sa.DateTime(timezone=True),
    "text": sa.Text(),
    "integer": sa.Integer(),
    "bigint": sa.BigInteger(),
    "double": sa.Double(),
    "boolean": sa.Boolean(),
    "json": sa.JSON(),
    "bytes": sa.LargeBinary(),
}
NAMES: Final = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    "pk": "pk_%(table_name)s",
}
"""The names that indexes and constraints get from those of their columns."""


def define_table(tables: sa.MetaData, name: str, columns: str, *items: Any, **options: Any) -> sa.Table:
    """Define a table with the columns that a text describes, and further constraints and indexes."""
    return sa.Table(name, tables, *parse_columns(columns), *items, **options)


def add_columns(table: str, columns: str) -> None:
    for column in parse_columns(columns):
        op.add_column(table, column)


def parse_columns(text: str) -> list[sa.Column[Any]]:
    """Return the columns of a text such as `id identifier key, note text?, count integer default 0`.

    `?` lets a column be NULL; `references TABLE.COLUMN` makes it a foreign key; the single integer of a primary key
    numbers its rows unless it is `unnumbered`.
    """
    return [parse_column(*description.split()) for description in text.split(",")]


def parse_column(name: str, kind: str, *words: str) -> sa.Column[Any]:
    values = {word: words[place + 1] for place, word in enumerate(words) if word in ("default", "references")}
    default = values.get("default")
    return sa.Column(
        name,
        KINDS[kind.rstrip("?")],
        *([sa.ForeignKey(values["references"])] if "references" in values else []),
        nullable=kind.endswith("?"),
        primary_key="key" in words,
        autoincrement=False if "unnumbered" in words else "auto",
        server_default=sa.false() if default == "false" else default,
    )


def define_index(*columns: str, name: str | None = None, where: str | None = None, unique: bool = False) -> sa.Index:
    """Return an index, over the rows that meet a condition if one is given."""
    condition = None if where is None else sa.text(where)
    return sa.Index(name, *columns, unique=unique, sqlite_where=condition, postgresql_where=condition)


def add_index(table: str, *columns: str, name: str | None = None, where: str | None = None) -> None:
    condition = None if where is None else sa.text(where)
    chosen = name or f"ix_{table}_{'_'.join(columns)}"
    op.create_index(chosen, table, list(columns), sqlite_where=condition, postgresql_where=condition)
