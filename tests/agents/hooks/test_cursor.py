"""Events of Cursor as they are read, and answers as it reads them."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from cstp_grpc.agents.hooks.cursor import TOOLS, read_event, wanted_hooks, write_answer
from cstp_grpc.agents.hooks.model import HookAnswer, HookDecision, HookEvent, HookMoment
from cstp_grpc.agents.hooks.tool_rules import ToolQuestion, ToolRules
from tests.agents.hooks.payloads import payload

RULES = ToolRules.parse(TOOLS)


def question(name: str, **changes: Any) -> ToolQuestion:
    event = read_event(payload(name, agent="cursor", **changes))
    return RULES.question_about(event.tool, event.arguments, event.folder)


@pytest.mark.parametrize("event", ["beforeShellExecution", "beforeMCPExecution", "preToolUse", ""])
@pytest.mark.parametrize("decision", [HookDecision.ASK, HookDecision.DENY])
def test_cursor_runs_what_it_is_told_to_ask_about_and_is_told_to_deny(event: str, decision: HookDecision) -> None:
    answer = HookAnswer(decision, "Not this", context="x", notice="y")
    written = write_answer(HookEvent(HookMoment.BEFORE_TOOL, event), answer)
    assert written == {"permission": "deny", "user_message": "Not this", "agent_message": "Not this"}


def test_an_answer_that_decides_nothing_is_an_empty_object() -> None:
    assert write_answer(HookEvent(HookMoment.BEFORE_TOOL), HookAnswer(context="x", notice="y")) == {}


def test_tools_of_mcp_are_judged_with_their_server() -> None:
    assert question("mcp") == ToolQuestion(
        "check",
        'Call MCP:memory:create_entities with {"entities": [{"name": "shop", "note": "we drop table orders"}]}',
    )
    assert question("mcp", tool_input="").description == "Call MCP:memory:create_entities with {}"


@pytest.mark.parametrize(
    ("server", "asked"),
    [
        ({"command": "/opt/venv/bin/cstp mcp"}, "nothing"),
        ({"command": "", "url": "http://localhost:8150/mcp", "mcp_server_url": "http://localhost:8150/mcp"}, "nothing"),
        ({"command": "./cstp mcp"}, "check"),
        ({"command": "", "url": "https://evil.example/mcp"}, "check"),
    ],
    ids=str,
)
def test_a_server_that_has_only_the_name_is_judged(server: dict[str, str], asked: str) -> None:
    assert question("mcp", mcp_server_name="cstp", tool_name="check_action", **server).ask == asked


@pytest.mark.parametrize("changes", [{"tool_input": "{"}, {"tool_input": "[]"}, {"tool_name": ""}, {"command": "'"}])
def test_a_call_of_mcp_that_is_not_understood_is_refused(changes: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r".+"):
        read_event(payload("mcp", agent="cursor", mcp_server_name="cstp", **changes))


def test_a_command_that_is_missing_is_refused() -> None:
    with pytest.raises(ValueError, match="names no command"):
        read_event(payload("bash", agent="cursor", command=""))


def test_files_are_deleted_and_written_by_their_paths() -> None:
    assert question("edit", tool_name="Delete", tool_input={"path": "src/a.py"}) == ToolQuestion(
        "announce",
        "Delete src/a.py",
        ("src/a.py",),
        invocation={"writes": ["/project/src/a.py"], "directory": "/project"},
    )
    unknown = question("edit", tool_input={"target": "a.py"})
    assert json.dumps({"target": "a.py"})[1:-1] in unknown.description


def test_hooks_that_judge_fail_closed_and_no_call_is_judged_twice() -> None:
    for every_tool in (False, True):
        wanted = wanted_hooks("cstp hook cursor", seconds=8, every_tool=every_tool)
        for event in ("beforeShellExecution", "beforeMCPExecution", "preToolUse"):
            assert wanted[event]["failClosed"] is True
        matcher = wanted["preToolUse"]["matcher"]
        assert [tool for tool in ("Write", "Delete", "Shell", "MCP:x") if re.search(matcher, tool)] == [
            "Write",
            "Delete",
        ]
        assert bool(re.search(matcher, "Read")) is every_tool


def test_a_command_runs_in_the_folder_of_its_event() -> None:
    assert question("bash", cwd="/srv").invocation == {"command": "npm test", "directory": "/srv"}
    assert question("bash").invocation == {"command": "npm test", "directory": "/project"}
