"""Calls that a server refuses leave a trace in its audit trail, over both transports."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from cstp_grpc.contract.methods import contract_methods
from tests.harness import TOKENS, GrpcCaller, JsonRpcCaller, bridging, running, settings

FLOOD = 40
CHECK = "cstp.checkGuardrails"
ACTION = {"action": {"description": "Deploy the secret thing"}}
LIMITS = {
    "enabled": True,
    "per_agent": "1000/second",
    "wrong_tokens": "1000/second",
    "methods": {"cstp.queryDecisions": "1/hour"},
}
REFUSED: dict[tuple[str, str, str], tuple[str, dict[str, Any], str]] = {
    ("", CHECK, "AUTHENTICATION_REQUIRED"): (CHECK, ACTION, "a-token-of-nobody"),
    ("reader", "cstp.listAuditEntries", "PERMISSION_DENIED"): ("cstp.listAuditEntries", {}, TOKENS["reader"]),
    ("alice", CHECK, "INVALID_ARGUMENT"): (CHECK, {"action": {"description": "  "}}, TOKENS["alice"]),
    ("bob", "cstp.queryDecisions", "RATE_LIMITED"): ("cstp.queryDecisions", {"query": "anything"}, TOKENS["bob"]),
    # Refused by what announces, which records nothing of it.
    ("bob", "cstp.announceIntent", "INVALID_ARGUMENT"): (
        "cstp.announceIntent",
        {"intent": "Deploy", "metadata": {"a": "x" * 300_000}},
        TOKENS["bob"],
    ),
}
"""Who is refused what and why, and the call of which that comes."""


@contextmanager
def calling(folder: Path, transport: str, **overrides: Any) -> Iterator[GrpcCaller | JsonRpcCaller]:
    """Serve a data folder and yield who calls over a transport."""
    wanted = settings(folder, rate_limits=LIMITS, **overrides)
    with running(wanted) as app, bridging(wanted, app.target) as url:
        caller = GrpcCaller(app.target) if transport == "grpc" else JsonRpcCaller(url)
        with closing(caller):
            yield caller


def entries(folder: Path, **conditions: Any) -> list[dict[str, Any]]:
    """Return the entries of a data folder that is not served, latest first."""
    with calling(folder, "grpc") as caller:
        result = caller.call("cstp.listAuditEntries", conditions).result
        assert result is not None
        found: list[dict[str, Any]] = result["entries"]
        return found


def data_version(connection: sqlite3.Connection) -> int:
    """Return a number that changes whenever somebody else commits a change to the database."""
    (version,) = connection.execute("PRAGMA data_version").fetchone()
    return int(version)


@pytest.mark.parametrize("transport", ["grpc", "jsonrpc"])
def test_refused_calls_are_counted_without_a_write_for_each(tmp_path: Path, transport: str) -> None:
    folder = tmp_path / "data"
    with calling(folder, transport) as caller:
        assert caller.call("cstp.queryDecisions", {"query": "the one that is allowed"}, TOKENS["bob"]).reason is None
        with closing(sqlite3.connect(folder / "journal.db")) as database:
            before = data_version(database)
            for (_, _, reason), (method, params, token) in REFUSED.items():
                for _ in range(FLOOD):
                    assert caller.call(method, params, token).reason == reason
            assert data_version(database) == before
    found = entries(folder, event="calls_refused")
    assert {(each["requestingAgent"], each["action"], each["error"]): each["count"] for each in found} == dict.fromkeys(
        REFUSED, FLOOD
    )
    for each in found:
        assert each["firstAt"] <= each["lastAt"] <= each["timestamp"]
        assert "a-token-of-nobody" not in str(each)
        assert "secret thing" not in str(each)


def test_params_that_a_bridge_cannot_read_are_counted_too(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with calling(folder, "jsonrpc") as caller:
        for _ in range(3):
            refused = caller.call(CHECK, {"action": {"describtion": "Deploy"}})
            assert (refused.reason, refused.fields) == ("INVALID_ARGUMENT", ("action.describtion",))
        missing = caller.call("cstp.listAuditEntries", {"evnet": "none"}, TOKENS["reader"])
        assert (missing.reason, missing.fields) == ("PERMISSION_DENIED", ())
        assert caller.call(CHECK, {"acton": {}}, None).reason == "AUTHENTICATION_REQUIRED"
        for reason in ("INVALID_ARGUMENT", "RATE_LIMITED"):
            assert caller.call("cstp.queryDecisions", {"question": ""}).reason == reason
    found = entries(folder, event="calls_refused")
    assert {(each["requestingAgent"], each["action"], each["error"]): each["count"] for each in found} == {
        ("alice", CHECK, "INVALID_ARGUMENT"): 3,
        ("reader", "cstp.listAuditEntries", "PERMISSION_DENIED"): 1,
        ("", CHECK, "AUTHENTICATION_REQUIRED"): 1,
        ("alice", "cstp.queryDecisions", "INVALID_ARGUMENT"): 1,
        ("alice", "cstp.queryDecisions", "RATE_LIMITED"): 1,
    }


def test_a_message_that_is_none_is_counted_like_one_that_is_wrong(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with calling(folder, "grpc") as caller:
        assert isinstance(caller, GrpcCaller)
        send: grpc.UnaryUnaryMultiCallable[bytes, bytes] = caller.channel.unary_unary(contract_methods()[CHECK].path)
        metadata = (("authorization", f"Bearer {TOKENS['alice']}"),)
        for _ in range(3):
            with pytest.raises(Exception, match="cannot be decoded"):
                send(b"\xff\xff\xff", metadata=metadata, timeout=20)
    (entry,) = entries(folder, error="INVALID_ARGUMENT")
    assert (entry["requestingAgent"], entry["action"], entry["count"]) == ("alice", CHECK, 3)


def test_calls_that_fail_for_other_reasons_are_not_counted(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with calling(folder, "grpc") as caller:
        assert caller.call("cstp.getDecision", {"id": "none"}).reason == "NOT_FOUND"
        assert caller.call(CHECK, ACTION).reason is None
    assert [entry["event"] for entry in entries(folder)] == ["guardrail_check"]


def test_without_an_audit_trail_nothing_is_written(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with calling(folder, "grpc", audit={"enabled": False}) as caller:
        assert caller.call(CHECK, ACTION, None).reason == "AUTHENTICATION_REQUIRED"
    assert entries(folder) == []
