"""The state of a server, its peers and its agents, as operators see them."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from cstp_grpc.platform.config import Settings
from tests.core.guardrails.rulebooks import content, rule, write
from tests.harness import TOKENS, GrpcCaller, running, settings
from tests.modules.federation.agents import PEER_TOKEN, agent_settings, peer
from tests.waiting import wait_until


@contextmanager
def serving(wanted: Settings, **options: Any) -> Iterator[GrpcCaller]:
    with running(wanted, **options) as app:
        caller = GrpcCaller(app.target)
        try:
            yield caller
        finally:
            caller.close()


def result_of(caller: GrpcCaller, method: str, **params: Any) -> Mapping[str, Any]:
    outcome = caller.call(method, params)
    assert outcome.result is not None, outcome
    return outcome.result


def warnings_of(caller: GrpcCaller) -> dict[str, str]:
    status = result_of(caller, "cstp.getServerStatus")
    return {each["subject"]: each["message"] for each in status["warnings"]}


def test_rules_that_cannot_be_loaded_are_a_warning(tmp_path: Path) -> None:
    rules = write(tmp_path / "rules.yaml", content([rule("a", "true")]))
    with serving(settings(tmp_path / "data", cstp={"guardrails": {"config_path": rules}})) as caller:
        assert "rules" not in warnings_of(caller)
        rules.write_text("guardrails: [")
        wait_until(lambda: "rules" in warnings_of(caller), "a warning about the rules")
        status = result_of(caller, "cstp.getServerStatus")
    assert status["rules"]["guardrails"]["count"] == 1
    assert status["rules"]["failedAt"] > status["rules"]["loadedAt"]


def test_a_database_that_does_not_answer_is_a_warning(tmp_path: Path) -> None:
    with serving(settings(tmp_path / "data")) as caller:
        assert "database" not in warnings_of(caller)
        with sqlite3.connect(tmp_path / "data" / "journal.db") as other:
            other.execute("ALTER TABLE alembic_version RENAME TO hidden_version")
            other.execute("CREATE VIEW alembic_version AS SELECT absent FROM nowhere")
        status = result_of(caller, "cstp.getServerStatus")
    assert status["database"]["answers"] is False
    assert "latencyMs" not in status["database"]
    assert status["warnings"][0]["subject"] == "database"


def test_settings_that_are_probably_unintended_are_warnings(tmp_path: Path) -> None:
    with serving(settings(tmp_path / "data", audit={"enabled": False})) as caller:
        status = result_of(caller, "cstp.getServerStatus")
        assert "records nothing" in warnings_of(caller)["configuration"]
    assert status["modules"] == ["a2a", "approvals", "intent_layer", "liaison", "managed_tokens"]


def test_the_pages_of_agents_join_to_all(tmp_path: Path) -> None:
    with serving(settings(tmp_path / "data")) as caller:
        names: list[str] = []
        token = ""
        while True:
            page = result_of(caller, "cstp.listAgents", pageSize=2, pageToken=token)
            names += [each["name"] for each in page["agents"]]
            token = page["nextPageToken"]
            if not token:
                break
        assert names == ["alice", "bob", "reader"]
        first = result_of(caller, "cstp.listAgents", pageSize=1)["nextPageToken"]
        other = caller.call("cstp.listAgents", {"pageSize": 1, "pageToken": first, "agent": "bob"})
        assert other.fields == ("page_token",)


def test_agents_of_an_issuer_are_recognised_by_their_names(tmp_path: Path) -> None:
    issuer = {
        "issuer": "https://issuer.example.com",
        "audience": ["cstp"],
        "jwks_url": "http://127.0.0.1:9/keys",
        "agent_prefix": "corp/",
        "configured_agents": ["bob"],
    }
    now = datetime(2026, 2, 4, 12, tzinfo=UTC)
    with serving(settings(tmp_path / "data", auth=auth_with(issuer)), clock=lambda: now) as caller:
        result_of(caller, "cstp.checkGuardrails", action={"description": "Read the logs"})
        found = {each["name"]: each for each in result_of(caller, "cstp.listAgents")["agents"]}
    assert found["bob"]["credentials"] == ["configured_token", "jwt"]
    assert found["alice"]["credentials"] == ["configured_token"]
    assert datetime.fromisoformat(found["alice"]["lastCallAt"]) == now
    assert "lastCallAt" not in found["bob"]


def auth_with(issuer: Mapping[str, Any]) -> dict[str, Any]:
    tokens = [{"name": name, "token": TOKENS[name], "permissions": ["admin", "check"]} for name in ("alice", "bob")]
    return {"tokens": tokens, "jwt": [issuer]}


def test_the_use_of_a_managed_token_is_a_call(tmp_path: Path) -> None:
    instants = iter(datetime(2026, 2, 4, tzinfo=UTC) + timedelta(minutes=each) for each in range(10_000))
    with serving(settings(tmp_path / "data"), clock=lambda: next(instants)) as caller:
        made = result_of(caller, "cstp.createToken", requestId="r-1", agent="builder", permissions=["query"])
        (before,) = result_of(caller, "cstp.listAgents", agent="builder")["agents"]
        assert caller.call("cstp.getAccess", {}, made["secret"]).reason is None
        (after,) = result_of(caller, "cstp.listAgents", agent="builder")["agents"]
        result_of(caller, "cstp.revokeToken", id=made["token"]["id"])
        (revoked,) = result_of(caller, "cstp.listAgents", agent="builder")["agents"]
    assert "lastCallAt" not in before
    assert after["credentials"] == ["managed_token"]
    assert after["lastCallAt"] > "2026-02-04T00:00:00Z"
    assert "firstCallAt" not in after
    assert revoked["credentials"] == []


@pytest.mark.parametrize("timeout", [{}, {"timeoutSeconds": 5}], ids=["their own timeouts", "a timeout"])
def test_peers_are_asked_for_their_health(tmp_path: Path, free_port: int, timeout: Mapping[str, Any]) -> None:
    with running(agent_settings(tmp_path / "b", "security")) as security:
        peers = [
            peer("b", f"grpc://{security.target}", role="required", categories=["deployment"]),
            peer("c", f"grpc://{security.target}", token="not-the-token"),
            peer("d", f"grpc://127.0.0.1:{free_port}"),
        ]
        hub = settings(tmp_path / "a", agent={"name": "hub"}, federation={"peers": peers})
        with serving(hub) as caller:
            found = result_of(caller, "cstp.listPeers", **timeout)["peers"]
            status = result_of(caller, "cstp.getServerStatus")
    assert [(each["name"], each["status"]) for each in found] == [
        ("b", "answered"),
        ("c", "refused"),
        ("d", "unreachable"),
    ]
    healthy = found[0]
    assert (healthy["agent"], healthy["required"], healthy["categories"]) == ("security", True, ["deployment"])
    assert healthy["latencyMs"] > 0
    assert healthy["missingPermissions"] == []
    assert "error" not in healthy
    assert found[1]["error"].startswith("AUTHENTICATION_REQUIRED")
    assert found[2]["breaker"] == "closed"
    assert PEER_TOKEN not in str(found)
    assert "federation" in status["modules"]
