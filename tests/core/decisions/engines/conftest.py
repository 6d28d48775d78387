"""Engines that servers share: a PostgreSQL with pgvector, and a Chroma server."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from cstp_grpc.core.decisions.read_policy import SHARE_WITH_ALL, ReadPolicy
from cstp_grpc.core.decisions.search.chroma_engine import ChromaEngine, check_server
from cstp_grpc.core.decisions.search.search_engine import EngineFailed, SearchEngine
from cstp_grpc.core.decisions.search.sql_pgvector import PgvectorEngine, open_engine_database
from cstp_grpc.platform.storage.database import Database
from tests.core.decisions.engines.engine_kit import OpenEngine
from tests.databases import POOL_SIZE, PostgresMissing, PostgresServer, pgvector_binaries, postgres_server
from tests.waiting import wait_until


@pytest.fixture
def database_kind() -> str:
    """The kind of the journal's database: an engine does not depend on it."""
    return "sqlite"


@pytest.fixture(scope="session")
def pgvector() -> Iterator[PostgresServer]:
    """A PostgreSQL with pgvector."""
    try:
        with postgres_server(binaries=pgvector_binaries()) as server:
            yield server
    except PostgresMissing as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="session")
def chroma_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a Chroma server."""
    folder = tmp_path_factory.mktemp("chroma")
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    arguments = ["run", "--path", str(folder), "--host", "127.0.0.1", "--port", str(port)]
    with subprocess.Popen([Path(sys.executable).parent / "chroma", *arguments], stdout=subprocess.DEVNULL) as process:
        try:
            wait_until(partial(answers, url), "Chroma answers")
            yield url
        finally:
            process.kill()


def answers(url: str) -> bool:
    with suppress(EngineFailed):
        check_server(url)
        return True
    return False


@pytest.fixture(params=["postgresql", "chroma"])
def engine_kind(request: pytest.FixtureRequest) -> str:
    """Each kind of engine."""
    kind: str = request.param
    return kind


@pytest.fixture
def engine_url(engine_kind: str, request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of an empty engine."""
    if engine_kind == "chroma":
        yield request.getfixturevalue("chroma_url")
        return
    server: PostgresServer = request.getfixturevalue("pgvector")
    with server.temporary_database(migrated=False) as url:
        yield url


@pytest.fixture
def open_engine(engine_kind: str, engine_url: str, database: Database) -> Iterator[OpenEngine]:
    """Opens the engine for the journal with a name and a model."""
    opened: list[SearchEngine] = []

    def open_one(journal: str, model: str, dimensions: int, sharing: ReadPolicy = SHARE_WITH_ALL) -> SearchEngine:
        engine: SearchEngine
        if engine_kind == "chroma":
            engine = ChromaEngine(engine_url, journal, model, sharing, partial(database.try_lock, "search"))
        else:
            engine = PgvectorEngine(open_engine_database(engine_url, POOL_SIZE), journal, model, dimensions, sharing)
        opened.append(engine)
        return engine

    yield open_one
    for engine in opened:
        engine.close()
