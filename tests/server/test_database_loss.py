"""A server whose SQLite file is removed or damaged while it serves."""

from __future__ import annotations

import json
import sqlite3
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.harness import TIMEOUT, GrpcCaller, JsonRpcCaller, bridging, running, settings

LOST = "the database's file was removed or replaced while in use; the server must be restarted"
DAMAGED = "the database is damaged and must be restored from a copy"
PAGE = 4096
WRITES: list[tuple[str, Mapping[str, Any]]] = [
    ("cstp.checkGuardrails", {"action": {"description": "tidy up"}}),
    ("cstp.announceIntent", {"intent": "tidy up"}),
    ("cstp.recordDecision", {"decision": {"title": "tidy up", "context": "It is untidy"}}),
]
READS: list[tuple[str, Mapping[str, Any]]] = [
    ("cstp.getDecision", {"id": "unknown"}),
    ("cstp.listAuditEntries", {}),
    ("cstp.queryDecisions", {"query": "tidy up"}),
]


@pytest.fixture(params=["grpc", "jsonrpc"])
def caller(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[GrpcCaller | JsonRpcCaller]:
    """A caller of a server on SQLite, over each transport."""
    wanted = settings(tmp_path)
    with running(wanted) as app:
        if request.param == "grpc":
            with closing(GrpcCaller(app.target)) as caller:
                yield caller
            return
        with bridging(wanted, app.target) as url:
            yield JsonRpcCaller(url)


def remove(database: Path) -> None:
    database.unlink()


def truncate_log(database: Path) -> None:
    Path(f"{database}-wal").write_bytes(b"")


@pytest.mark.parametrize("lose", [remove, truncate_log])
def test_nothing_is_acknowledged_once_the_database_is_lost(
    caller: GrpcCaller | JsonRpcCaller, tmp_path: Path, lose: Callable[[Path], None]
) -> None:
    for method, params in WRITES:
        assert caller.call(method, params).reason is None
    # What it finds is in memory from now on.
    assert caller.call("cstp.queryDecisions", {"query": "tidy up"}).reason is None
    lose(tmp_path / "journal.db")
    for method, params in WRITES * 2:
        outcome = caller.call(method, params)
        assert (method, outcome.reason, outcome.message) == (method, "UNAVAILABLE", LOST)
    for method, params in READS:
        outcome = caller.call(method, params)
        assert (method, outcome.reason, outcome.message) == (method, "QUERY_FAILED", LOST)


@pytest.mark.parametrize("lose", [remove, truncate_log])
def test_health_says_that_the_database_is_lost_without_any_call(tmp_path: Path, lose: Callable[[Path], None]) -> None:
    wanted = settings(tmp_path)
    with (
        running(wanted) as app,
        bridging(wanted, app.target) as url,
        grpc.insecure_channel(app.target) as channel,
    ):
        # An empty log has nothing to lose.
        with closing(GrpcCaller(app.target)) as caller:
            assert caller.call(*WRITES[0]).reason is None
        stub = health_pb2_grpc.HealthStub(channel)
        watched = stub.Watch(health_pb2.HealthCheckRequest(service="cstp.v1.CstpService"), timeout=TIMEOUT)
        assert next(watched).status == health_pb2.HealthCheckResponse.SERVING
        with urllib.request.urlopen(f"{url}/health", timeout=TIMEOUT) as well:
            assert json.load(well)["status"] == "ok"
        lose(tmp_path / "journal.db")
        assert next(watched).status == health_pb2.HealthCheckResponse.NOT_SERVING
        answer = stub.Check(health_pb2.HealthCheckRequest(), timeout=TIMEOUT)
        assert answer.status == health_pb2.HealthCheckResponse.NOT_SERVING
        with pytest.raises(urllib.error.HTTPError) as unwell:
            urllib.request.urlopen(f"{url}/health", timeout=TIMEOUT)
        with unwell.value as response:
            assert (response.status, json.load(response)["status"]) == (503, "unavailable")


def test_checks_and_records_are_told_of_damage_alike(tmp_path: Path) -> None:
    wanted = settings(tmp_path)
    with running(wanted):
        pass
    damage_trail(tmp_path / "journal.db")
    with running(wanted) as app, closing(GrpcCaller(app.target)) as caller:
        for method, params in WRITES:
            outcome = caller.call(method, params)
            assert (method, outcome.reason) == (method, "UNAVAILABLE")
            assert outcome.message == f"the record could not be stored: {DAMAGED}"
        outcome = caller.call("cstp.listAuditEntries", {})
        assert (outcome.reason, outcome.message) == ("QUERY_FAILED", DAMAGED)


def damage_trail(database: Path) -> None:
    """Overwrite the pages in which the audit trail and its indexes begin."""
    with closing(sqlite3.connect(database)) as connection:
        pages = connection.execute(
            "SELECT rootpage FROM sqlite_master WHERE tbl_name = 'audit_entries' AND rootpage > 0"
        )
        roots = [root for (root,) in pages]
    with database.open("r+b") as file:
        for root in roots:
            file.seek((root - 1) * PAGE)
            file.write(b"\xa5" * PAGE)
