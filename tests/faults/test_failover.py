"""A primary PostgreSQL that is killed while its standby takes over: nothing acknowledged is lost."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.databases import PostgresMissing, PostgresServer, postgres_server
from tests.faults.postgres_load import loaded
from tests.faults.serving import write_settings

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

logger = logging.getLogger(__name__)

DATABASE = "journal"
REPLICATION = ("wal_level=replica", "max_wal_senders=4", "listen_addresses=127.0.0.1")


def free_ports(number: int) -> list[int]:
    """Return ports that nobody listens on."""
    with ExitStack() as opened:
        listeners = [opened.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(number)]
        return [int(listener.getsockname()[1]) for listener in listeners]


@pytest.fixture
def ports() -> list[int]:
    """The TCP ports of the primary and of the standby."""
    return free_ports(2)


@pytest.fixture
def primary(ports: list[int]) -> Iterator[PostgresServer]:
    try:
        with postgres_server(*REPLICATION, port=ports[0]) as server:
            server.create(DATABASE, migrated=True)
            yield server
    except PostgresMissing as missing:
        pytest.skip(str(missing))


@pytest.fixture
def standby(primary: PostgresServer, ports: list[int]) -> Iterator[PostgresServer]:
    """A server without which the primary acknowledges no commit."""
    with postgres_server(*REPLICATION, port=ports[1], standby_of=primary) as server:
        primary.wait_for_synchronous_standby()
        yield server


def test_a_standby_that_takes_over_has_all_that_was_acknowledged(
    tmp_path: Path, ports: list[int], primary: PostgresServer, standby: PostgresServer
) -> None:
    hosts = "&".join(f"host=127.0.0.1:{port}" for port in ports)
    url = f"postgresql://postgres@/{DATABASE}?{hosts}&target_session_attrs=read-write"
    settings = write_settings(tmp_path, storage={"url": url, "write_timeout_seconds": 2})
    with loaded(settings) as (_, load):
        load.wait_for_progress(30)
        primary.kill()
        load.wait_for_failures()
        began = time.monotonic()
        standby.promote()
        promoted = time.monotonic()
        load.wait_for_progress(1)
        resumed = time.monotonic()
    logger.info("promoted in %.1f s, the next decision %.1f s later", promoted - began, resumed - promoted)
