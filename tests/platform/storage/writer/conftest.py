"""A writer of things."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import text

from cstp_grpc.platform.storage.database import Database
from cstp_grpc.platform.storage.writer import GroupCommitWriter
from tests.databases import ServerWriter


@pytest.fixture(params=["alone", "in_turns"])
def writer(database: Database, request: pytest.FixtureRequest) -> Iterator[GroupCommitWriter]:
    """The writer of a server that has the database for itself, and of one of several servers."""
    writer = GroupCommitWriter(database, 30.0) if request.param == "alone" else ServerWriter(database)
    yield writer
    writer.close()


@pytest.fixture(autouse=True)
def things(database: Database) -> None:
    with database.open_write_connection() as connection, connection.begin():
        connection.execute(text("CREATE TABLE things (name VARCHAR(100) PRIMARY KEY)"))
