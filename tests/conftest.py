"""Fixtures that tests of several packages share."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import socket
import time
from collections.abc import Generator, Iterator
from contextlib import closing, nullcontext
from pathlib import Path

import pytest

from cstp_grpc.platform.storage.database import Database, open_database
from cstp_grpc.platform.storage.writer import GroupCommitWriter
from tests.certificates import Authority, Certificate, make_certificate
from tests.databases import (
    POOL_SIZE,
    PostgresMissing,
    PostgresServer,
    ServerWriter,
    postgres_server,
    write_journal,
)
from tests.emptied_databases import ReusedDatabases
from tests.example_counts import register_profiles
from tests.store_contracts import observe_calls
from tests.temporary_files import use_temporary_parent

register_profiles()
use_temporary_parent()
# Far from UTC, whatever the machine has: an instant that is read or written as local time then differs.
os.environ["TZ"] = "XXX-5:45"
time.tzset()
# A shell starts what runs in the background without it, and tests interrupt processes that inherit what this one does.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


GARBAGE_THRESHOLDS = (20_000, 20, 100)
"""How many objects are made before garbage is looked for, and how many such searches before older objects are, too.

A server makes some 100 000 objects at its start: with the defaults of Python a twentieth of the CPU goes into searches.
"""


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without looking for garbage: thousands of items stay until the end, and each search would visit them."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(*GARBAGE_THRESHOLDS)
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as slow, before slow tests are left out, what PostgreSQL would only repeat."""
    for item in items:
        if repeats_on_postgres(item):
            item.add_marker(pytest.mark.slow)


def repeats_on_postgres(item: pytest.Item) -> bool:
    """Return whether a test, on PostgreSQL, enters what the contracts of stores prove and SQLite has decided."""
    call = item.callspec if isinstance(item, pytest.Function) and hasattr(item, "callspec") else None
    on_postgres = call is not None and call.params.get("database_kind") == "postgresql"
    above = item.get_closest_marker("above_stores") is not None
    return on_postgres and above and not any(map(item.get_closest_marker, ("contract", "both_databases")))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """See that a test calls the methods of stores whose contract it is marked as."""
    marker = item.get_closest_marker("contract")
    with observe_calls(marker.args) if marker else nullcontext():
        return (yield)


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL of our own; each worker of pytest-xdist starts one."""
    try:
        with postgres_server() as server:
            yield server
    except PostgresMissing as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="session")
def postgres_databases(postgres: PostgresServer) -> Iterator[ReusedDatabases]:
    """Migrated databases of our PostgreSQL, which tests use one after the other."""
    with closing(ReusedDatabases(postgres)) as databases:
        yield databases


@pytest.fixture(params=["sqlite", "postgresql"])
def database_kind(request: pytest.FixtureRequest) -> str:
    """Each kind of database that the journal may be kept in."""
    kind: str = request.param
    return kind


@pytest.fixture
def empty_database_url(database_kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a fresh database without tables."""
    if database_kind == "sqlite":
        yield f"sqlite:///{tmp_path / 'empty.db'}"
        return
    server: PostgresServer = request.getfixturevalue("postgres")
    with server.temporary_database(migrated=False) as url:
        yield url


@pytest.fixture
def database_url(database_kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a fresh database with the present tables."""
    if database_kind == "sqlite":
        path = tmp_path / "journal.db"
        write_journal(path)
        yield f"sqlite:///{path}"
        return
    with request.getfixturevalue("postgres_databases").borrow() as url:
        yield url


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    """A fresh, migrated database: SQLite, then PostgreSQL."""
    database = open_database(database_url, POOL_SIZE)
    yield database
    database.close()


@pytest.fixture
def writer(database: Database) -> Iterator[GroupCommitWriter]:
    """The writer of the `database` fixture's database."""
    writer = ServerWriter(database)
    yield writer
    writer.close()


@pytest.fixture
def free_port() -> int:
    """A port on which nothing listens."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port: int = held.getsockname()[1]
    return port


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    """A certificate for localhost."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is needed to make a certificate")
    return make_certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Who certifies servers."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is needed to make a certificate")
    return Authority(tmp_path_factory.mktemp("authority"))
