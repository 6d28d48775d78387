"""Events of Gemini CLI as they are read, and answers as it reads them."""

from __future__ import annotations

import re
from typing import Any

import pytest

from cstp_grpc.agents.hooks.gemini_cli import CHECKED_TOOLS, TOOLS, read_event, wanted_hooks, write_answer
from cstp_grpc.agents.hooks.model import HookAnswer, HookDecision, HookEvent, HookMoment
from cstp_grpc.agents.hooks.tool_rules import ToolRules
from tests.agents.hooks.payloads import payload

RULES = ToolRules.parse(TOOLS)
BEFORE = HookEvent(HookMoment.BEFORE_TOOL, "BeforeTool")


def test_a_user_who_is_asked_is_told_why() -> None:
    # The confirmation shows the system message alone.
    assert write_answer(BEFORE, HookAnswer(HookDecision.ASK, "May it?", context="x")) == {
        "decision": "ask",
        "reason": "May it?",
        "systemMessage": "May it?",
    }
    assert write_answer(BEFORE, HookAnswer(HookDecision.DENY, "No")) == {"decision": "deny", "reason": "No"}


def test_an_answer_that_is_rejected_says_what_to_mend() -> None:
    ended = HookEvent(HookMoment.TURN_ENDED, "AfterAgent")
    assert write_answer(ended, HookAnswer(reason="Mend it", notice="Filed", keep_going=True)) == {
        "decision": "deny",
        "reason": "Mend it",
        "systemMessage": "Filed",
    }


@pytest.mark.parametrize(
    ("cwd", "path", "words"),
    [
        ("/project", "notes.txt", "Write notes.txt"),
        ("/project/src", "notes.txt", "Write src/notes.txt"),
        ("/project/src", "/project/a.py", "Write a.py"),
        ("/project", "../notes.txt", "Write /project/../notes.txt"),
    ],
)
def test_a_relative_path_is_one_from_the_folder_of_the_session(cwd: str, path: str, words: str) -> None:
    event = read_event(payload("write", agent="gemini-cli", cwd=cwd, tool_input={"file_path": path}))
    assert RULES.question_about(event.tool, event.arguments, "/project").description == words


def test_calls_with_other_arguments_or_of_other_sessions_have_other_ids() -> None:
    edit = payload("edit", agent="gemini-cli")
    calls = [edit, {**edit, "session_id": "other"}, {**edit, "tool_input": {"file_path": "a"}}]
    assert len({read_event(call).call_id for call in calls}) == len(calls)
    assert re.fullmatch("hook-[0-9a-f]{32}", read_event(edit).call_id)


@pytest.mark.parametrize(
    ("server", "asked"),
    [
        ({"command": "cstp", "args": ["mcp"]}, "nothing"),
        ({"command": "/opt/venv/bin/cstp", "args": ["mcp", "--local"]}, "nothing"),
        ({"command": "/opt/venv/bin/python", "args": ["-m", "cstp_grpc", "mcp"]}, "nothing"),
        ({"url": "http://127.0.0.1:8150/mcp"}, "nothing"),
        ({}, "nothing"),
        ({"command": "./cstp", "args": ["mcp"]}, "check"),
        ({"command": "node", "args": ["evil.js", "cstp", "mcp"]}, "check"),
        ({"command": "cstp", "args": ["serve"]}, "check"),
        ({"command": "cstp"}, "check"),
        ({"url": "https://evil.example/mcp"}, "check"),
        ({"tcp": "evil.example:1"}, "check"),
        ({"url": "http://127.0.0.1.evil.example/mcp"}, "check"),
        ({"server_name": "cstp_check", "tool_name": "action"}, "check"),
    ],
    ids=str,
)
def test_a_server_that_has_only_the_name_is_judged(server: dict[str, Any], asked: str) -> None:
    context = {"server_name": "cstp", "tool_name": "check_action", **server}
    event = read_event(payload("mcp", agent="gemini-cli", tool_name="mcp_cstp_check_action", mcp_context=context))
    assert RULES.question_about(event.tool, event.arguments, event.folder).ask == asked


def test_the_hook_runs_for_commands_edits_and_mcp_tools_in_milliseconds() -> None:
    wanted = wanted_hooks("cstp hook gemini-cli", seconds=8)
    assert wanted["BeforeTool"]["matcher"] == CHECKED_TOOLS
    for tool in ("run_shell_command", "replace", "write_file", "mcp_memory_create_entities"):
        assert re.search(CHECKED_TOOLS, tool)
    assert not re.search(CHECKED_TOOLS, "list_directory")
    assert wanted["BeforeTool"]["hooks"][0]["timeout"] > 8000
