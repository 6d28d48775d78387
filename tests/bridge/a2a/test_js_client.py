"""The official JavaScript client of A2A: tests/a2a_js/session.mjs, run with node, and what it reports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.bridge.a2a.products import Product
from tests.bridge.a2a.sdks import INSTALL_SECONDS, SESSION_SECONDS, run_command
from tests.harness import TOKENS, JsonRpcCaller, Peers

pytestmark = pytest.mark.timeout(2 * (INSTALL_SECONDS + SESSION_SECONDS))

EXTENSION = "urn:cstp:extension:v1"
WAYS = ["JSONRPC-1.0", "HTTP+JSON-1.0", "GRPC-1.0", "JSONRPC-0.3", "GRPC-0.3"]
WAYS_1_0 = WAYS[:3]


@pytest.fixture(scope="module")
def report(js_sdk: Path, product: Product) -> dict[str, Any]:
    """What each session came to, by its transport and version."""
    addresses = {"A2A_URL": product.bridges[0].url, "A2A_TOKEN": TOKENS["alice"], "A2A_OTHER_TOKEN": TOKENS["bob"]}
    session = run_command(("node", "session.mjs"), js_sdk, SESSION_SECONDS, **addresses)
    assert session.returncode == 0, session.stderr
    found: dict[str, Any] = json.loads(session.stdout)
    assert list(found) == WAYS
    return found


@pytest.fixture(params=WAYS)
def session(report: dict[str, Any], request: pytest.FixtureRequest) -> dict[str, Any]:
    found: dict[str, Any] = report[request.param]
    return found


def result_of(task: dict[str, Any]) -> dict[str, Any]:
    """Return the result in the task's one artifact, whose other part is for reading."""
    [artifact] = task["artifacts"]
    data, text = artifact["parts"]
    assert text["text"]
    result: dict[str, Any] = data["data"]
    return result


def state(task: dict[str, Any]) -> str:
    found: str = task["status"]["state"]
    return found


@pytest.mark.parametrize("session", WAYS, indirect=True)
def test_it_speaks_the_version_that_it_found(session: dict[str, Any], request: pytest.FixtureRequest) -> None:
    assert "-".join(session["protocol"]) == request.node.callspec.params["session"]
    assert session["extendedCard"]["name"] == session["card"]["name"]


def test_text_is_an_intent_to_announce(session: dict[str, Any]) -> None:
    task = session["text"]
    assert state(task) == "TASK_STATE_COMPLETED"
    result = result_of(task)
    assert (result["received"], result["correlationId"]) == (True, task["id"])
    assert task["metadata"][EXTENSION]["method"] == "cstp.announceIntent"


def test_data_is_a_call(session: dict[str, Any]) -> None:
    assert state(session["data"]) == "TASK_STATE_COMPLETED"
    assert result_of(session["data"])["query"] == "payment service"


def test_work_is_streamed_from_its_start_to_its_end(session: dict[str, Any]) -> None:
    first, artifact, last = session["stream"]
    assert state(first["task"]) == "TASK_STATE_WORKING"
    assert result_of({"artifacts": [artifact["artifactUpdate"]["artifact"]]})["received"] is True
    assert state(last["statusUpdate"]) == "TASK_STATE_COMPLETED"


def test_a_task_can_be_had_again(session: dict[str, Any]) -> None:
    assert session["got"] == session["text"]


@pytest.mark.parametrize("session", WAYS_1_0, indirect=True)
def test_tasks_are_listed_by_conversation(session: dict[str, Any]) -> None:
    assert session["listed"] == {"result": [session["data"]["id"], session["text"]["id"]]}
    assert session["other"]["list"] == {"result": []}


def test_what_is_over_cannot_be_canceled(session: dict[str, Any]) -> None:
    assert session["canceled"]["error"] == "TaskNotCancelableError"


def test_what_is_over_cannot_be_subscribed_to(session: dict[str, Any]) -> None:
    assert f"Task {session['text']['id']} has ended" in session["subscribed"]["message"]


def test_an_activated_extension_is_said_to_be_active(session: dict[str, Any]) -> None:
    heard = session["heard"]
    assert (heard["plain"], heard["activated"]) == ([None], [EXTENSION])
    assert state(heard["task"]) == "TASK_STATE_COMPLETED"


def test_a_method_can_be_called_by_its_name(report: dict[str, Any], peers: Peers) -> None:
    result = report["JSONRPC-1.0"]["method"]["result"]
    elsewhere = JsonRpcCaller(peers.url).call("cstp.queryDecisions", {"query": "payment service"}).result
    assert elsewhere is not None
    assert set(result) == set(elsewhere)


def test_a_blocked_intent_passes_once_the_conversation_says_what_was_missing(session: dict[str, Any]) -> None:
    blocked, passed = session["blocked"], session["passed"]
    assert (state(blocked), state(passed)) == ("TASK_STATE_INPUT_REQUIRED", "TASK_STATE_COMPLETED")
    assert passed["contextId"] == blocked["contextId"]
    [violation] = result_of(blocked)["guardrailStatus"]["violations"]
    assert violation["guardrailId"] == "no-production-without-review"


def test_the_tasks_of_others_do_not_exist(session: dict[str, Any]) -> None:
    assert [session["other"][call]["error"] for call in ("get", "cancel")] == ["TaskNotFoundError"] * 2


def test_a_stranger_learns_only_that_it_needs_a_token(session: dict[str, Any]) -> None:
    code = {"JSONRPC": -31001, "HTTP+JSON": 401, "GRPC": 16}[session["protocol"][0]]
    for outcome in session["stranger"].values():
        assert outcome["code"] == code
        assert "No bearer token was sent" in outcome["message"]
