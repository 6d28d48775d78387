"""Agents with JWTs of an issuer that publishes its keys, over gRPC and over JSON-RPC."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from cstp_grpc.platform.config import ConfigError, describe_plain_listeners
from cstp_grpc.platform.config.exposure import ALL_LISTENERS
from cstp_grpc.server.app import App
from tests.harness import TOKENS, GrpcCaller, JsonRpcCaller, bridging, running, settings
from tests.server.identity.issuer import AUDIENCE, ISSUER, Issuer, serving_issuer
from tests.waiting import wait_until

Caller = GrpcCaller | JsonRpcCaller


@pytest.fixture(scope="module")
def issuer() -> Iterator[Issuer]:
    with serving_issuer() as issuer:
        yield issuer


def issuer_settings(issuer: Issuer, **more: Any) -> dict[str, Any]:
    return {"issuer": ISSUER, "audience": [AUDIENCE], "jwks_url": issuer.url, **more}


@pytest.fixture(scope="module")
def app(issuer: Issuer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[App]:
    limits = {"enabled": True}
    with running(
        settings(tmp_path_factory.mktemp("jwt"), auth={"jwt": [issuer_settings(issuer)]}, rate_limits=limits)
    ) as app:
        yield app


@pytest.fixture(scope="module", params=["grpc", "jsonrpc"])
def caller(request: pytest.FixtureRequest, app: App, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Caller]:
    if request.param == "grpc":
        with closing(GrpcCaller(app.target)) as grpc_caller:
            yield grpc_caller
        return
    with bridging(settings(tmp_path_factory.mktemp("bridge")), app.target) as url:
        yield JsonRpcCaller(url)


def test_an_agent_of_an_issuer_has_the_permissions_of_its_claims(caller: Caller, issuer: Issuer) -> None:
    token = issuer.token(sub="builder", scope="cstp:query cstp:announce")
    outcome = caller.call("cstp.getAccess", {}, token)
    assert outcome.result is not None
    assert outcome.result["requestingAgent"] == "builder"
    assert outcome.result["permissions"] == ["announce", "query"]
    assert caller.call("cstp.queryDecisions", {"query": "a queue"}, token).reason is None
    refused = caller.call("cstp.checkGuardrails", {"action": {"description": "Deploy"}}, token)
    assert refused.reason == "PERMISSION_DENIED"


def test_tokens_of_the_settings_stay_as_they_are(caller: Caller) -> None:
    outcome = caller.call("cstp.getAccess", {}, TOKENS["alice"])
    assert outcome.result is not None
    assert outcome.result["requestingAgent"] == "alice"


def test_a_forged_token_is_a_wrong_one(caller: Caller, issuer: Issuer) -> None:
    other = Issuer()
    other.add_key("one")
    refused = caller.call("cstp.getAccess", {}, other.token())
    assert refused.reason == "AUTHENTICATION_REQUIRED"
    assert issuer.url not in refused.message
    assert ISSUER not in refused.message


def test_rotated_keys_are_read_without_a_restart(app: App, issuer: Issuer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cstp_grpc.server.identity.signing_keys.RETRY_SECONDS", 0.0)
    issuer.add_key("two")
    token = issuer.token("two")
    with closing(GrpcCaller(app.target)) as caller:
        assert caller.call("cstp.getAccess", {}, token).reason == "UNAVAILABLE"
        wait_until(lambda: caller.call("cstp.getAccess", {}, token).reason is None, "the new key is known")


def test_a_server_starts_while_its_issuer_is_away(issuer: Issuer, tmp_path: Path) -> None:
    away = issuer_settings(issuer, jwks_url="http://127.0.0.1:1/keys")
    with running(settings(tmp_path, auth={"jwt": [away]})) as app, closing(GrpcCaller(app.target)) as caller:
        assert caller.call("cstp.getAccess", {}, issuer.token()).reason == "UNAVAILABLE"
        assert caller.call("cstp.getAccess", {}, TOKENS["alice"]).reason is None


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ({"jwks_url": "http://issuer.example.com/keys"}, "must begin with https"),
        ({"algorithms": ["HS256"]}, "auth.jwt.0.algorithms.0"),
        ({"algorithms": ["none"]}, "auth.jwt.0.algorithms.0"),
        ({"algorithms": []}, "auth.jwt.0.algorithms"),
        ({"audience": []}, "auth.jwt.0.audience"),
    ],
)
def test_issuers_whose_tokens_could_be_forged_are_refused(
    issuer: Issuer, tmp_path: Path, more: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem):
        settings(tmp_path, auth={"jwt": [issuer_settings(issuer, **more)]})


def test_an_issuer_is_named_once(issuer: Issuer, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="named twice"):
        settings(tmp_path, auth={"jwt": [issuer_settings(issuer)] * 2})


@pytest.mark.parametrize(
    ("one", "other"),
    [("", ""), ("", "corp/"), ("corp/", "corp/"), ("corp/", "corp/labs/"), ("labs", "lab")],
)
def test_no_issuer_names_the_agents_of_another(issuer: Issuer, tmp_path: Path, one: str, other: str) -> None:
    # Nor in another tenant: what an agent has left is found by its name.
    issuers = [
        issuer_settings(issuer, agent_prefix=one),
        issuer_settings(issuer, agent_prefix=other, tenant="other") | {"issuer": "https://other.example.com/"},
    ]
    with pytest.raises(ConfigError, match="could name the same agent; give each an agent_prefix"):
        settings(tmp_path, auth={"jwt": issuers})


def test_issuers_with_prefixes_of_their_own_stand_beside_each_other(issuer: Issuer, tmp_path: Path) -> None:
    issuers = [
        issuer_settings(issuer, agent_prefix="corp/"),
        issuer_settings(issuer, agent_prefix="labs/") | {"issuer": "https://other.example.com/"},
    ]
    assert len(settings(tmp_path, auth={"jwt": issuers}).auth.jwt) == 2


def test_an_issuer_speaks_for_agents_of_the_settings_only_where_they_say_so(
    app: App, issuer: Issuer, tmp_path: Path
) -> None:
    token = issuer.token(sub="alice", scope="cstp:query")
    with closing(GrpcCaller(app.target)) as caller:
        assert caller.call("cstp.getAccess", {}, token).reason == "AUTHENTICATION_REQUIRED"
    lent = issuer_settings(issuer, configured_agents=["alice"])
    with running(settings(tmp_path, auth={"jwt": [lent]})) as other, closing(GrpcCaller(other.target)) as caller:
        outcome = caller.call("cstp.getAccess", {}, token)
        assert outcome.result is not None
        assert outcome.result["requestingAgent"] == "alice"


def test_a_server_may_know_its_callers_by_an_issuer_alone(issuer: Issuer, tmp_path: Path) -> None:
    wanted = settings(tmp_path, auth={"tokens": [], "jwt": [issuer_settings(issuer)]})
    assert wanted.auth.lets_anyone_in
    assert not list(describe_plain_listeners(wanted, ALL_LISTENERS))
