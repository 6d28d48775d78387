"""Events of Claude Code as they are read, and answers as it reads them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cstp_grpc.agents.hooks.claude_code import CHECKED_TOOLS, CLAUDE_CODE, TOOLS, wanted_hooks
from cstp_grpc.agents.hooks.claude_format import read_payload
from cstp_grpc.agents.hooks.model import HookAnswer, HookDecision, HookEvent, HookMoment
from cstp_grpc.agents.hooks.tool_rules import OWN_MCP_TOOLS
from tests.agents.hooks.payloads import payload


def test_a_tool_call_is_read_whole() -> None:
    assert read_payload(payload("write"), "/elsewhere") == HookEvent(
        HookMoment.BEFORE_TOOL,
        "PreToolUse",
        tool="Write",
        arguments={"file_path": "/project/notes.txt", "content": "file content"},
        call_id="toolu_01GHI789",
        folder="/elsewhere",
    )


def test_the_end_of_a_turn_is_read_whole() -> None:
    event = read_payload(payload("stop", stop_hook_active=True))
    assert (event.last_message, event.continued) == ("I've completed the refactoring.", True)


@pytest.mark.parametrize(
    "changes",
    [{"tool_name": ""}, {"tool_name": 7}, {"tool_name": None}, {"tool_input": []}, {"tool_input": None}, {"cwd": {}}],
    ids=str,
)
def test_an_event_that_names_no_tool_call_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="payload"):
        read_payload(payload("bash", **changes))


@given(
    st.sampled_from(HookMoment),
    st.builds(HookAnswer, st.sampled_from(HookDecision), st.text(), st.text(), st.text(), st.booleans()),
)
def test_an_answer_is_written_whole(moment: HookMoment, answer: HookAnswer) -> None:
    written = CLAUDE_CODE.write_answer(HookEvent(moment), answer)
    said = written.get("hookSpecificOutput", {})
    expected = {HookDecision.NONE: None, HookDecision.ASK: "ask", HookDecision.DENY: "deny"}[answer.decision]
    assert said.get("permissionDecision") == (expected if moment is HookMoment.BEFORE_TOOL else None)
    assert written.get("decision") == ("block" if answer.keep_going else None)
    assert written.get("systemMessage", "") == answer.notice
    told = moment in (HookMoment.SESSION_STARTED, HookMoment.PROMPT_SUBMITTED, HookMoment.BEFORE_TOOL)
    assert said.get("additionalContext", "") == (answer.context if told else "")


def test_an_empty_answer_is_an_empty_object() -> None:
    assert CLAUDE_CODE.write_answer(HookEvent(HookMoment.BEFORE_TOOL), HookAnswer()) == {}


def test_a_hook_that_judges_blocks_if_it_fails_and_nothing_waits_for_one_that_does_not() -> None:
    wanted = wanted_hooks("cstp hook claude-code", seconds=8)
    (judging,) = wanted["PreToolUse"]["hooks"]
    assert judging["onFailure"] == "block"
    assert judging["timeout"] > 8
    for event in ("PostToolUse", "PostToolUseFailure"):
        assert [hook["async"] for hook in wanted[event]["hooks"]] == [True]


def test_the_hook_runs_for_the_tools_of_the_table() -> None:
    matcher = wanted_hooks("cstp", seconds=8)["PreToolUse"]["matcher"]
    assert matcher == CHECKED_TOOLS
    listed = set(matcher.removeprefix("^(").removesuffix(")$").replace(".*", "*").split("|"))
    own = {f"{server}__{tool}" for tool in OWN_MCP_TOOLS for server in ("mcp__cstp", "mcp__plugin_cstp_cstp")}
    assert listed == {rule["tool"] for rule in TOOLS["tools"]} - own
    assert wanted_hooks("cstp", seconds=8, every_tool=True)["PreToolUse"]["matcher"] == "*"
