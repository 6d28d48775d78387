"""Servers that keep their chat sessions in one database."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from cstp_grpc.platform.storage.database import Database, open_database
from cstp_grpc.platform.storage.writer import GroupCommitWriter
from tests.databases import POOL_SIZE, ServerWriter
from tests.modules.liaison.room import Room, build_room

PILLARS = ("content", "insights")
MICROSECOND = timedelta(microseconds=1)


class Clock:
    """Tells instants that rise from call to call."""

    def __init__(self) -> None:
        self._now = datetime(2026, 1, 1, tzinfo=UTC)
        self._lock = threading.Lock()

    def __call__(self) -> datetime:
        return self.wait(MICROSECOND)

    def wait(self, time: timedelta) -> datetime:
        with self._lock:
            self._now += time
            return self._now


@contextmanager
def second_server(database: Database) -> Iterator[tuple[Database, GroupCommitWriter]]:
    """Give another server's connections and writer to the same database."""
    other = open_database(database.engine.url.render_as_string(hide_password=False), POOL_SIZE)
    try:
        other_writer = ServerWriter(other)
        try:
            yield other, other_writer
        finally:
            other_writer.close()
    finally:
        other.close()


@contextmanager
def two_rooms(
    database: Database, writer: GroupCommitWriter, clock: Callable[[], datetime], **options: Any
) -> Iterator[list[Room]]:
    """Give what two servers of the same database serve."""
    with second_server(database) as other:
        yield [build_room(*server, clock, PILLARS, **options) for server in ((database, writer), other)]
