"""Calls with more words than guardrails read at once."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cstp_grpc.agents.hooks.claude_code import TOOLS
from cstp_grpc.agents.hooks.claude_format import read_payload
from cstp_grpc.agents.hooks.event_handler import FailurePolicy, HookSettings, answer_event
from cstp_grpc.agents.hooks.long_calls import (
    MAX_CALL_CHARACTERS,
    MAX_COMMAND_CHARACTERS,
    MAX_DESCRIPTION_CHARACTERS,
    OVERLAP,
    split_description,
)
from cstp_grpc.agents.hooks.model import HookAnswer, HookDecision
from cstp_grpc.agents.hooks.server_calls import BridgeCalls
from cstp_grpc.agents.hooks.tool_rules import ToolRules
from tests.agents.hooks.payloads import payload
from tests.client.scripted import HttpReply, http_server

RULES = ToolRules.parse(TOOLS)
ALLOWED = {"allowed": True, "violations": [], "warnings": [], "approvalRequired": False}
BLOCKED = {
    **ALLOWED,
    "allowed": False,
    "violations": [{"guardrailId": "x", "message": "No", "severity": "block", "missingInputs": []}],
    "assumed": [],
    "ignoredContext": [],
}
APPROVABLE = {
    **BLOCKED,
    "approvalRequired": True,
    "violations": [{"guardrailId": "x", "message": "Ask", "severity": "approve", "missingInputs": []}],
}


def judge(action: Any) -> Any:
    """Return the verdict of a server by the words of an action."""
    if "FORBIDDEN" in action["description"]:
        return BLOCKED
    return APPROVABLE if "ASK" in action["description"] else ALLOWED


def reply(call: Any) -> Any:
    params = call["params"]
    batch = {"results": [{"verdict": judge(action)} for action in params.get("actions", ())]}
    result = judge(params["action"]) if call["method"] == "cstp.checkGuardrails" else batch
    return {"jsonrpc": "2.0", "id": call["id"], "result": result}


def answer(text: str, policy: FailurePolicy = FailurePolicy.ASK, **replies: Any) -> HookAnswer:
    with http_server(HttpReply(replies.get("reply", reply))) as server:
        calls = BridgeCalls(server.url, None, seconds=5)
        event = read_payload(payload("bash", tool_name="mcp__notes__add", tool_input={"text": text}))
        return answer_event(event, calls, HookSettings(RULES, on_failure=policy))


def test_a_long_command_is_judged_whole() -> None:
    seen: list[Any] = []

    def record(call: Any) -> Any:
        seen.append(call["params"]["action"])
        return reply(call)

    command = "echo " + "x" * 20_000
    with http_server(HttpReply(record)) as server:
        event = read_payload(payload("bash", tool_input={"command": command}))
        assert answer_event(event, BridgeCalls(server.url, None, seconds=5), HookSettings(RULES)) == HookAnswer()
    assert [action["command"] for action in seen] == [command]
    assert len(seen[0]["description"]) == MAX_DESCRIPTION_CHARACTERS


def test_a_command_that_is_too_long_is_denied() -> None:
    event = read_payload(payload("bash", tool_input={"command": "x" * (MAX_COMMAND_CHARACTERS + 1)}))
    with http_server(HttpReply(reply)) as server:
        said = answer_event(event, BridgeCalls(server.url, None, seconds=5), HookSettings(RULES))
    assert said.decision is HookDecision.DENY
    assert "put its data into a file" in said.reason


@pytest.mark.parametrize("policy", FailurePolicy)
def test_a_part_that_is_objected_to_decides(policy: FailurePolicy) -> None:
    for place in (0, 7999, 8001, 20_000):
        command = "x" * place + " FORBIDDEN " + "y" * 10_000
        assert answer(command, policy).decision is HookDecision.DENY
    asked = answer("x" * 9000 + " ASK " + "y" * 9000, policy)
    assert asked.decision is HookDecision.ASK
    assert "the guardrails let a person decide" in asked.reason
    assert answer("ASK " + "y" * 9000 + " FORBIDDEN", policy).decision is HookDecision.DENY


@pytest.mark.parametrize(
    ("policy", "decision"),
    [
        (FailurePolicy.ASK, HookDecision.ASK),
        (FailurePolicy.DENY, HookDecision.DENY),
        (FailurePolicy.ALLOW, HookDecision.NONE),
    ],
)
def test_a_call_that_was_judged_in_parts_only_is_left_to_the_policy(
    policy: FailurePolicy, decision: HookDecision
) -> None:
    said = answer("x" * 8001, policy)
    assert said.decision is decision
    assert "characters" in (said.notice or said.reason)


@pytest.mark.parametrize("policy", FailurePolicy)
def test_a_call_that_no_shell_takes_is_denied(policy: FailurePolicy) -> None:
    said = answer("x" * (MAX_CALL_CHARACTERS + 1), policy)
    assert said.decision is HookDecision.DENY
    assert "put its data into a file" in said.reason


@pytest.mark.parametrize("results", [[], [{"verdict": ALLOWED}], [{"error": {"reason": "INTERNAL"}}] * 2], ids=len)
def test_parts_without_a_verdict_allow_nothing(results: list[Any]) -> None:
    response = {"jsonrpc": "2.0", "id": 1, "result": {"results": results}}
    assert answer("x" * 9000, reply=lambda _: response).decision is HookDecision.ASK


@given(st.integers(0, 60_000))
def test_every_stretch_of_a_text_is_in_one_part(length: int) -> None:
    text = "".join(chr(0x4E00 + number % 20_000) for number in range(length))
    parts = split_description(text)
    assert all(len(part) <= MAX_DESCRIPTION_CHARACTERS for part in parts)
    for start in range(0, max(length - OVERLAP, 1), 97):
        assert any(text[start : start + OVERLAP] in part for part in parts)
    assert sum(map(len, parts)) - OVERLAP * (len(parts) - 1) == length
