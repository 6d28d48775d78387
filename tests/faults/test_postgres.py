"""A PostgreSQL that is restarted, frozen, slow, cut off or talks nonsense: nothing acknowledged is lost."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.databases import PostgresMissing, PostgresServer, children_of, postgres_server
from tests.faults.postgres_load import loaded
from tests.faults.proxy import FaultyProxy, Network, proxy_to
from tests.faults.serving import write_settings

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

ROUNDS = 3
DATABASE = "journal"


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    """A PostgreSQL of this test alone, with an empty database."""
    try:
        with postgres_server() as server:
            server.create(DATABASE, migrated=True)
            yield server
    except PostgresMissing as missing:
        pytest.skip(str(missing))


@pytest.fixture
def proxy(server: PostgresServer) -> Iterator[FaultyProxy]:
    """A proxy through which the database is reached over TCP."""

    def connect() -> socket.socket:
        upstream = socket.socket(socket.AF_UNIX)
        try:
            upstream.connect(str(server.socket_path))
        except OSError:
            upstream.close()
            raise
        return upstream

    with proxy_to(connect) as proxy:
        yield proxy


@pytest.fixture
def settings(tmp_path: Path, proxy: FaultyProxy) -> Path:
    url = f"postgresql://postgres@127.0.0.1:{proxy.port}/{DATABASE}"
    return write_settings(tmp_path, storage={"url": url, "write_timeout_seconds": 2})


@pytest.mark.parametrize("network", [Network.SILENT, Network.CUT, Network.GARBAGE])
def test_a_database_that_cannot_be_reached_loses_nothing_and_is_found_again(
    settings: Path, proxy: FaultyProxy, network: Network
) -> None:
    # Of garbage that begins as a long message does, libpq waits for the rest, so that a connection may never end.
    with loaded(settings, kill=network is Network.GARBAGE) as (_, load):
        for _ in range(ROUNDS):
            with proxy.being(network):
                load.wait_for_failures()
            load.wait_for_progress()


def test_a_slow_database_loses_nothing(settings: Path, proxy: FaultyProxy) -> None:
    with loaded(settings) as (_, load), proxy.being(Network.SLOW):
        load.wait_for_progress(4)


def test_a_database_that_is_restarted_loses_nothing_and_is_found_again(settings: Path, server: PostgresServer) -> None:
    with loaded(settings) as (_, load):
        for _ in range(ROUNDS):
            server.stop()
            load.wait_for_failures()
            server.start_again()
            load.wait_for_progress()


def test_a_database_that_is_frozen_loses_nothing_and_goes_on(settings: Path, server: PostgresServer) -> None:
    with loaded(settings) as (_, load):
        for _ in range(ROUNDS):
            with frozen(server):
                load.wait_for_failures()
            load.wait_for_progress()


@contextmanager
def frozen(server: PostgresServer) -> Iterator[None]:
    """Stop all processes of a PostgreSQL for the length of a block."""
    pids = [server.pid, *children_of(server.pid)]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
