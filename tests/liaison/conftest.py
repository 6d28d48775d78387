"""Fixtures of the tests of liaison routing."""

from __future__ import annotations

import pytest

from cstp_grpc.liaison.sql_routing import SqlRoutingStore
from cstp_grpc.liaison.sql_sessions import SqlSessionStore
from cstp_grpc.storage.database import Database
from tests.liaison.servers import Clock


@pytest.fixture
def clock() -> Clock:
    """A clock that a test moves on."""
    return Clock()


@pytest.fixture
def sessions(database: Database) -> SqlSessionStore:
    """The sessions in the `database` fixture's database."""
    return SqlSessionStore(database)


@pytest.fixture
def routing(database: Database) -> SqlRoutingStore:
    """The shares, activations and events in the `database` fixture's database."""
    return SqlRoutingStore(database)
