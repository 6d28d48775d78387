"""Column types, naming and indexes that the tables of all rooms share.

The tables themselves stand beside the SQL stores of their rooms.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from sqlalchemy import (
    JSON,
    BigInteger,
    DateTime,
    Dialect,
    Index,
    Integer,
    MetaData,
    Text,
    TypeDecorator,
    text,
)


class UtcDateTime(TypeDecorator[datetime]):
    """An instant with microseconds, stored and returned in UTC; raises ValueError for a naive one."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002
        """Return an aware instant in UTC, as the database stores it."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"{value.isoformat()} says nothing of its time zone")
        return value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002
        """Return a stored instant as an aware one in UTC."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


# Identifiers are compared byte by byte on every database, so that listings have the same order on each.
IDENTIFIER = Text().with_variant(Text(collation="C"), "postgresql")
# SQLite numbers rows by itself only where the key is INTEGER, which holds 64 bits there.
SERIAL = BigInteger().with_variant(Integer(), "sqlite")
# An absent value is the database's NULL, never the JSON text `null`.
OPTIONAL_JSON = JSON(none_as_null=True)

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)


CONDITION: Final = "condition"
"""The key, in the info of an index over some rows only, of their condition."""


def partial_index(*columns: str, where: str, name: str | None = None, unique: bool = False) -> Index:
    """Return an index over the rows that meet a condition; a query must repeat the condition to use it."""
    # Not `postgresql_where`, for which SQLAlchemy loads the dialect and all its drivers, wherever the journal is.
    # Migrations make the indexes, and a test compares the two.
    return Index(name, *columns, unique=unique, sqlite_where=text(where), info={CONDITION: where})
