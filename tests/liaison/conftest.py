"""Fixtures of the tests of liaison routing."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine

from cstp_grpc.liaison.sql_routing import SqlRoutingStore
from cstp_grpc.liaison.sql_sessions import SqlSessionStore
from tests.liaison.servers import Clock


@pytest.fixture
def clock() -> Clock:
    """A clock that a test moves on."""
    return Clock()


@pytest.fixture
def sessions(engine: Engine) -> SqlSessionStore:
    """The sessions in the `engine` fixture's database."""
    return SqlSessionStore(engine)


@pytest.fixture
def routing(engine: Engine) -> SqlRoutingStore:
    """The shares, activations and events in the `engine` fixture's database."""
    return SqlRoutingStore(engine)
