"""What comes of servers that are away, slow or something else: an answer that lets nothing through."""

from __future__ import annotations

import itertools
import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from cstp_grpc.agents.hooks.claude_code import TOOLS
from cstp_grpc.agents.hooks.claude_format import read_payload
from cstp_grpc.agents.hooks.event_handler import (
    SEVERAL_PROJECTS,
    ApprovalPolicy,
    FailurePolicy,
    HookSettings,
    answer_event,
)
from cstp_grpc.agents.hooks.hook_texts import NAME_PROJECT
from cstp_grpc.agents.hooks.model import HookAnswer, HookDecision, HookMoment
from cstp_grpc.agents.hooks.server_calls import MAX_RESPONSE_BYTES, BridgeCalls
from cstp_grpc.agents.hooks.tool_rules import ToolRules
from cstp_grpc.contract.errors import InvalidArgument
from cstp_grpc.modules.intent_layer.code_context_reader import ProjectCodeReader
from cstp_grpc.modules.intent_layer.learning_store import LearningStore, ProjectSources
from cstp_grpc.modules.intent_layer.project_tree import ProjectTree
from tests.agents.hooks.payloads import LEARNED, payload
from tests.client.scripted import HttpReply, http_server

RULES = ToolRules.parse(TOOLS)
ALLOWED = {"allowed": True, "violations": [], "warnings": [], "approvalRequired": False}


def answer(url: str, name: str = "bash", policy: FailurePolicy = FailurePolicy.ASK, **changes: Any) -> HookAnswer:
    calls = BridgeCalls(url, "token", seconds=5)
    return answer_event(read_payload(payload(name, **changes)), calls, HookSettings(RULES, "shop", on_failure=policy))


def answer_to(reply: Any, name: str = "bash", **changes: Any) -> HookAnswer:
    with http_server(HttpReply(reply if callable(reply) else lambda _: reply)) as server:
        return answer(server.url, name, **changes)


def result(content: Any) -> Any:
    return lambda call: {"jsonrpc": "2.0", "id": call["id"], "result": content}


@pytest.fixture
def unused_url() -> Iterator[str]:
    """Where nobody listens."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{held.getsockname()[1]}"


@pytest.mark.parametrize(
    ("policy", "decision"),
    [
        (FailurePolicy.ASK, HookDecision.ASK),
        (FailurePolicy.DENY, HookDecision.DENY),
        (FailurePolicy.ALLOW, HookDecision.NONE),
    ],
)
def test_without_a_server_the_policy_decides_and_somebody_is_told(
    policy: FailurePolicy, decision: HookDecision, unused_url: str
) -> None:
    said = answer(unused_url, policy=policy)
    assert said.decision is decision
    assert "No server answers at" in (said.notice if policy is FailurePolicy.ALLOW else said.reason)


@pytest.mark.parametrize("reason", ["AUTHENTICATION_REQUIRED", "PERMISSION_DENIED", "INVALID_ARGUMENT", "RATE_LIMITED"])
def test_a_refusal_of_the_server_allows_nothing(reason: str) -> None:
    error = {"code": -32001, "message": "The token is unknown", "data": {"reason": reason}}
    with http_server(HttpReply(lambda call: {"jsonrpc": "2.0", "id": call["id"], "error": error})) as server:
        said = answer(server.url, policy=FailurePolicy.ALLOW)
    assert said.decision is HookDecision.ASK
    assert "The token is unknown" in said.reason


@pytest.mark.parametrize("reply", [{}, {"jsonrpc": "2.0", "id": 2, "result": ALLOWED}, result({})])
def test_an_answer_that_is_no_verdict_allows_nothing_either(reply: Any) -> None:
    with http_server(HttpReply(reply if callable(reply) else lambda _: reply)) as server:
        assert answer(server.url, policy=FailurePolicy.ALLOW).decision is HookDecision.ASK


@pytest.mark.parametrize("score", ["abc", 10**400], ids=["text", "huge"])
@pytest.mark.parametrize(
    ("allowed", "decision"), [(False, HookDecision.DENY), (True, HookDecision.ASK)], ids=["blocked", "allowed"]
)
def test_a_verdict_counts_whatever_the_rest_of_the_answer_is(
    score: object, allowed: bool, decision: HookDecision
) -> None:
    violation = {"guardrailId": "x", "message": "No", "severity": "block", "missingInputs": []}
    verdict = {**ALLOWED, "allowed": allowed, "violations": [] if allowed else [violation], "ignoredContext": []}
    similar = {"id": "dec-1", "title": "t", "score": score, "date": "2026-01-01T00:00:00Z"}
    announced = {"guardrailStatus": verdict, "similarDecisions": [similar], "relatedIntents": []}
    assert answer_to(result(announced), "edit", policy=FailurePolicy.ALLOW).decision is decision


@pytest.mark.parametrize("status", [502, 503, 504])
def test_something_else_at_the_address_allows_nothing(status: int) -> None:
    with http_server(HttpReply(b"<html>", status=status)) as server:
        said = answer(server.url, policy=FailurePolicy.ALLOW)
    assert said.decision is HookDecision.ASK
    assert f"answered HTTP {status} instead of JSON-RPC" in said.reason


@pytest.mark.parametrize(
    ("data", "decision"), [({}, HookDecision.ASK), ({"data": {"reason": "UNAVAILABLE"}}, HookDecision.NONE)]
)
def test_only_a_stated_reason_says_that_no_server_answers(data: dict[str, Any], decision: HookDecision) -> None:
    error = {"code": -32013, "message": "away", **data}
    said = answer_to({"jsonrpc": "2.0", "id": 1, "error": error}, policy=FailurePolicy.ALLOW)
    assert said.decision is decision


@pytest.mark.parametrize("name", ["session_start", "user_prompt_submit", "edited"])
def test_without_a_server_other_events_go_on_with_a_notice(name: str, unused_url: str) -> None:
    said = answer(unused_url, name, policy=FailurePolicy.DENY)
    assert said.decision is HookDecision.NONE
    assert "No server answers at" in said.notice


@pytest.mark.parametrize(
    "reply",
    [
        {},
        [],
        {"jsonrpc": "2.0", "id": 1},
        {"jsonrpc": "2.0", "id": 2, "result": ALLOWED},
        {"jsonrpc": "2.0", "id": 1, "result": [ALLOWED]},
        {"jsonrpc": "2.0", "id": 1, "error": {"code": -32001, "message": "who are you?", "data": 7}},
        {"jsonrpc": "2.0", "id": 1, "error": {"message": "x", "data": {"violations": [{"field": "action"}, 1]}}},
        result({}),
        result({"allowed": True}),
        result({"allowed": "yes", "violations": []}),
        result({**ALLOWED, "violations": None}),
        result({**ALLOWED, "warnings": [{}]}),
        result({**ALLOWED, "warnings": 7}),
    ],
)
def test_an_answer_that_is_no_verdict_allows_nothing(reply: Any) -> None:
    assert answer_to(reply).decision in (HookDecision.ASK, HookDecision.DENY)


def test_an_allowed_call_is_left_to_the_agent() -> None:
    assert answer_to(result(ALLOWED)) == HookAnswer()


def test_violations_deny_even_if_the_verdict_says_that_it_is_allowed() -> None:
    violation = {"guardrailId": "x", "message": "No", "severity": "block", "missingInputs": []}
    verdict = {**ALLOWED, "violations": [violation], "assumed": [], "ignoredContext": []}
    assert answer_to(result(verdict)).decision is HookDecision.DENY


def test_an_announcement_without_a_verdict_allows_nothing() -> None:
    assert answer_to(result({"received": True}), "edit").decision is HookDecision.ASK


def test_an_answer_that_is_too_large_allows_nothing() -> None:
    said = answer_to(result({**ALLOWED, "agent": "x" * MAX_RESPONSE_BYTES}))
    assert said.decision is HookDecision.ASK
    assert "is larger than" in said.reason


def test_the_request_is_the_one_of_the_contract() -> None:
    with http_server(HttpReply(result(ALLOWED))) as server:
        answer(server.url, tool_input={"command": "git push -f origin main"})
    (request,) = server.requests
    assert request[2]["params"] == {
        "action": {
            "description": "git push -f origin main",
            "command": "git push -f origin main",
            "directory": "/project",
            "context": {},
            "project": "shop",
        }
    }
    assert request[1]["authorization"] == "Bearer token"


def test_a_server_that_sends_slowly_for_ever_is_left_at_the_deadline() -> None:
    clock = itertools.chain([0.0] * 8, itertools.repeat(9.0))
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def send_slowly() -> None:
            connection, _ = listener.accept()
            with closing(connection):
                connection.recv(65_536)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
                try:
                    while True:
                        connection.sendall(b" ")
                except OSError:
                    return

        sender = threading.Thread(target=send_slowly)
        sender.start()
        calls = BridgeCalls(f"http://127.0.0.1:{listener.getsockname()[1]}", None, seconds=8, clock=lambda: next(clock))
        said = answer_event(read_payload(payload("bash")), calls, HookSettings(RULES))
        sender.join()
    assert said.decision is HookDecision.ASK
    assert "did not answer within 8 s" in said.reason


def test_a_redirect_is_not_followed() -> None:
    with http_server(HttpReply(b"", status=307, headers={"Location": "http://127.0.0.1:1/"})) as server:
        said = answer(server.url)
    assert said.decision is HookDecision.ASK
    assert "redirects to" in said.reason


@pytest.mark.parametrize("url", ["http://", "ftp://host", "http://host:port", "https://[::1"])
def test_an_address_that_is_none_allows_nothing(url: str) -> None:
    assert answer(url).decision is HookDecision.ASK


def test_only_calls_that_were_announced_are_closed() -> None:
    with http_server(HttpReply(result({}))) as server:
        assert answer(server.url, "edited", tool_name="Bash", tool_input={"command": "ls"}) == HookAnswer()
        assert answer(server.url, "edited", tool_use_id="") == HookAnswer()
        assert server.requests == []
        assert answer(server.url, "edit_failed") == HookAnswer()
    (request,) = server.requests
    assert request[2]["params"] == {"correlationId": "toolu_01DEF456", "outcome": "failure"}


@pytest.mark.parametrize(("reason", "notice"), [("NOT_FOUND", ""), ("INTERNAL", 'CSTP could not be asked: "broken"')])
def test_an_intent_that_was_not_announced_is_not_missed(reason: str, notice: str) -> None:
    error = {"code": -32000, "message": "broken", "data": {"reason": reason}}
    reply = {"jsonrpc": "2.0", "id": 1, "error": error}
    assert answer_to(reply, "edited") == HookAnswer(notice=notice)


@pytest.mark.parametrize(
    ("description", "notice"),
    [
        ("must be given, because there is not just one", ""),
        ("must be given, because there are several", NAME_PROJECT),
    ],
)
def test_without_a_project_the_words_alone_are_judged(description: str, notice: str) -> None:
    def reply(call: Any) -> Any:
        if "paths" in call["params"]:
            data = {"reason": "INVALID_ARGUMENT", "violations": [{"field": "project", "description": description}]}
            return {"jsonrpc": "2.0", "id": call["id"], "error": {"code": -32602, "message": "wrong", "data": data}}
        return result({"guardrailStatus": ALLOWED, "similarDecisions": [], "relatedIntents": []})(call)

    with http_server(HttpReply(reply)) as server:
        calls = BridgeCalls(server.url, None, seconds=5)
        assert answer_event(read_payload(payload("edit")), calls, HookSettings(RULES)) == HookAnswer(notice=notice)
        assert answer(server.url, "edit").decision is HookDecision.ASK
    assert [list(request[2]["params"].get("paths", ())) for request in server.requests] == [
        ["src/money.py"],
        [],
        ["src/money.py"],
    ]


def test_the_server_says_that_there_are_several_projects(tmp_path: Path) -> None:
    tree = ProjectTree(tmp_path)
    project = ProjectSources(tree, LearningStore(tree, lambda: datetime.now(UTC)))
    with pytest.raises(InvalidArgument) as raised:
        ProjectCodeReader({"shop": project, "web": project}).read_context(None, ["src"])
    (violation,) = raised.value.violations
    assert violation.field == "project"
    assert SEVERAL_PROJECTS in violation.description


def test_an_approval_that_was_denied_denies() -> None:
    violation = {"guardrailId": "x", "message": "No", "severity": "approve", "missingInputs": []}
    verdict = {**ALLOWED, "allowed": False, "violations": [violation], "assumed": [], "ignoredContext": []}
    assert answer_to(result(verdict)).decision is HookDecision.DENY
    assert answer_to(result({**verdict, "approvalRequired": True})).decision is HookDecision.ASK
    blocked = {**verdict, "approvalRequired": True, "violations": [violation, {**violation, "severity": "block"}]}
    assert answer_to(result(blocked)).decision is HookDecision.DENY


@pytest.mark.parametrize(("reason", "kept"), [("INVALID_ARGUMENT", True), ("NOT_FOUND", False), ("UNAVAILABLE", False)])
def test_only_what_the_agent_can_mend_keeps_it_going(reason: str, kept: bool) -> None:
    error = {"code": -32000, "message": "broken", "data": {"reason": reason}}
    said = answer_to({"jsonrpc": "2.0", "id": 1, "error": error}, "stop", last_assistant_message=LEARNED)
    assert said.keep_going is kept
    assert "broken" in (said.reason if kept else said.notice)


def test_learnings_need_a_project(unused_url: str) -> None:
    calls = BridgeCalls(unused_url, None, seconds=5)
    said = answer_event(read_payload(payload("stop", last_assistant_message=LEARNED)), calls, HookSettings(RULES))
    assert said == HookAnswer(notice="CSTP filed no learnings: the hook is run without --project.")


def test_a_missing_ca_file_asks_even_where_an_absent_server_allows(unused_url: str, tmp_path: Path) -> None:
    allowing, event = HookSettings(RULES, on_failure=FailurePolicy.ALLOW), read_payload(payload("bash"))
    trusting = BridgeCalls(unused_url, None, seconds=5, ca_file=tmp_path / "removed.pem")
    assert answer_event(event, BridgeCalls(unused_url, None, seconds=5), allowing).decision is HookDecision.NONE
    assert answer_event(event, trusting, allowing).decision is HookDecision.ASK


def test_settings_ask_by_default() -> None:
    settings = HookSettings(RULES)
    assert (settings.on_failure, settings.approvals) == (FailurePolicy.ASK, ApprovalPolicy.ASK)


def test_other_events_are_answered_with_nothing(unused_url: str) -> None:
    assert read_payload(payload("other")).moment is HookMoment.OTHER
    assert answer(unused_url, "other") == HookAnswer()
    assert answer(unused_url, "user_prompt_submit", prompt="  ") == HookAnswer()
    assert answer(unused_url, "stop") == HookAnswer()
