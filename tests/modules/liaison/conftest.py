"""Fixtures of the tests of liaison routing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cstp_grpc.modules.liaison.model import (
    Session,
)
from cstp_grpc.modules.liaison.sql_routing import SqlRoutingStore
from cstp_grpc.modules.liaison.sql_sessions import SqlSessionStore
from cstp_grpc.platform.storage.database import Database
from cstp_grpc.platform.storage.writer import GroupCommitWriter
from tests.modules.liaison.callers import serving
from tests.modules.liaison.room import Room
from tests.modules.liaison.servers import PILLARS, Clock, two_rooms
from tests.modules.liaison.stored_sessions import ROUTED, add, swap


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


@pytest.fixture
def routed(sessions: SqlSessionStore, writer: GroupCommitWriter) -> Session:
    """A session that a liaison agent has and nobody claimed."""
    add(sessions, writer)
    swap(sessions, writer, ROUTED)
    return ROUTED


@pytest.fixture(params=[False, True], ids=["by_the_guide", "directly"])
def directly(request: pytest.FixtureRequest) -> bool:
    """Whether a liaison agent's session may go to another one without the guide."""
    handover: bool = request.param
    return handover


@pytest.fixture
def rooms(database: Database, writer: GroupCommitWriter, clock: Clock, directly: bool) -> Iterator[list[Room]]:
    with two_rooms(database, writer, clock, direct_handover=directly) as made:
        for pillar in PILLARS:
            made[0].presence.heartbeat(serving(pillar), pillar, leaving=False)
        yield made
