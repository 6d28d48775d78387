"""status, agents and peers list: a running server, for people and as JSON."""

from __future__ import annotations

from typing import Any

import pytest

from cstp_grpc.cli.status_output import describe_engine
from cstp_grpc.gen.cstp.v1 import status_pb2
from tests.cli.conftest import Server


def test_the_state_of_a_server_is_shown(shared_server: Server) -> None:
    shown = shared_server.ok("status")
    assert "sqlite, answers in " in shown
    assert "approvals" in shown
    assert "writes 0" in shown
    status = shared_server.json("status")
    assert status["database"]["answers"] is True
    assert (status["search"]["index"], status["search"]["indexReady"]) == ("memory", True)
    assert "in memory" in shown
    assert f"rules, version {status['rules']['guardrails']['version']}" in shown.replace("\n", " ")


@pytest.mark.parametrize(
    ("status", "shown"),
    [
        ({"index": "memory", "decisions_in_memory": 1, "index_ready": True}, "1 decision in memory"),
        ({"index": "postgresql", "index_ready": True}, "postgresql ready"),
        ({"index": "postgresql", "index_ready": True, "index_lag": 2}, "postgresql ready, lacks 2 changes"),
        ({"index": "chroma"}, "chroma not ready"),
    ],
)
def test_the_engine_of_searches_is_shown(status: dict[str, Any], shown: str) -> None:
    assert describe_engine(status_pb2.SearchStatus(**status)) == shown


def test_agents_are_shown_with_their_calls(shared_server: Server) -> None:
    shared_server.ok("check", "Read the logs", agent="bob")
    shown = shared_server.ok("agents", "--name", "bob")
    assert "bob" in shown
    assert "1 check" in shown
    assert "configured token" in shown
    assert "never called" in shared_server.ok("agents", "--name", "reader")
    assert [each["name"] for each in shared_server.json("agents", "--limit", 2)["agents"]] == ["alice", "bob"]
    assert shared_server.ok("agents", "--name", "nobody") == "No matching agents.\n"


def test_a_server_without_peers_says_how_to_add_one(shared_server: Server) -> None:
    assert "cstp peers add URL" in shared_server.ok("peers", "list")


def test_the_permission_is_named(shared_server: Server) -> None:
    refused = shared_server("status", agent="reader")
    assert refused.exit_code == 1
    assert "admin" in refused.stderr
