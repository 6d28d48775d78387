"""Migrations."""

from __future__ import annotations

from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Engine

from cstp_grpc.storage.migrate import current, head
from cstp_grpc.storage.tables import metadata


def test_the_migrated_schema_is_that_of_the_tables(engine: Engine) -> None:
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True})
        assert compare_metadata(context, metadata) == []
    assert current(engine) == head()
