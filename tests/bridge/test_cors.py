from __future__ import annotations

from collections.abc import Iterable

import pytest

from cstp_grpc.platform.config import ServerSettings
from tests.bridge.support import JSON, Client, bridging, call

PREFLIGHT = {"Origin": "https://page.example", "Access-Control-Request-Method": "POST"}


def marks(headers: Iterable[str]) -> list[str]:
    return [name for name in headers if name.startswith("Access-Control-")]


def test_cors_is_off_by_default(bridge: Client) -> None:
    answer = bridge.request("OPTIONS", "/cstp", headers=PREFLIGHT)
    assert answer.status == 405
    assert not marks(answer.headers)
    assert not marks(bridge.get("/health", Origin="https://page.example").headers)


@pytest.mark.parametrize(("path", "methods"), [("/cstp", "POST"), ("/.well-known/agent.json", "GET, HEAD")])
def test_listed_origins_may_call(target: str, path: str, methods: str) -> None:
    with bridging(target, ServerSettings(cors_origins=["https://other.example", "https://page.example"])) as bridge:
        answer = bridge.request("OPTIONS", path, headers=PREFLIGHT)
    assert (answer.status, answer.body) == (204, b"")
    assert answer.headers["Access-Control-Allow-Origin"] == "https://page.example"
    assert answer.headers["Access-Control-Allow-Methods"] == methods
    assert "authorization" in answer.headers["Access-Control-Allow-Headers"].lower()
    assert "Origin" in answer.headers["Vary"]
    assert "Access-Control-Allow-Credentials" not in answer.headers


def test_other_origins_may_not(target: str) -> None:
    with bridging(target, ServerSettings(cors_origins=["https://other.example"])) as bridge:
        preflight = bridge.request("OPTIONS", "/cstp", headers=PREFLIGHT)
        answer = bridge.post(call("cstp.nope"), {"Content-Type": JSON, "Origin": "https://page.example"})
    assert "Access-Control-Allow-Origin" not in preflight.headers
    assert "Access-Control-Allow-Origin" not in answer.headers
    assert answer.headers["Vary"] == "Origin"


def test_any_origin_may_call_without_credentials(target: str) -> None:
    with bridging(target, ServerSettings(cors_origins=["*"])) as bridge:
        preflight = bridge.request("OPTIONS", "/cstp", headers=PREFLIGHT)
        answer = bridge.post(call("cstp.nope"), {"Content-Type": JSON, "Origin": "https://page.example"})
        missing = bridge.get("/nowhere", Origin="https://page.example")
        without = bridge.get("/health")
    for marked in (preflight, answer, missing):
        assert marked.headers["Access-Control-Allow-Origin"] == "*"
        assert "Access-Control-Allow-Credentials" not in marked.headers
    assert missing.status == 404
    assert "X-Request-Id" in answer.headers["Access-Control-Expose-Headers"]
    assert "Access-Control-Allow-Origin" not in without.headers
