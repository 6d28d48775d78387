"""Events of GitHub Copilot as they are read, in VS Code and in its CLI, and answers as both read them."""

from __future__ import annotations

from typing import Any

import pytest

from cstp_grpc.agents.hooks.copilot import TOOLS, read_event, wanted_hooks, write_answer
from cstp_grpc.agents.hooks.model import HookAnswer, HookDecision, HookEvent, HookMoment
from cstp_grpc.agents.hooks.tool_rules import ToolQuestion, ToolRules
from tests.agents.hooks.payloads import payload

RULES = ToolRules.parse(TOOLS)
PATCH = "*** Begin Patch\n*** Update File: src/a.py\n@@\n-x\n+y\n*** Delete File: b.py\n*** End Patch"


def question(tool: str, arguments: Any) -> ToolQuestion:
    event = read_event(payload("bash", agent="copilot-cli", tool_name=tool, tool_input=arguments))
    return RULES.question_about(event.tool, event.arguments, event.folder)


@pytest.mark.parametrize(
    ("tool", "arguments", "paths"),
    [
        ("Write", {"path": "/project/a.py", "file_text": "rm -rf /"}, ("a.py",)),
        ("Edit", {"path": "src/a.py", "old_str": "x", "new_str": "y"}, ("src/a.py",)),
        ("Edit", PATCH, ("src/a.py", "b.py")),
        ("apply_patch", {"input": PATCH, "explanation": "Mend it"}, ("src/a.py", "b.py")),
        ("create_file", {"filePath": "/project/a.py", "content": "rm -rf /"}, ("a.py",)),
        (
            "multi_replace_string_in_file",
            {"explanation": "x", "replacements": [{"filePath": "/project/a.py"}, {"filePath": "/project/b.py"}]},
            ("a.py", "b.py"),
        ),
        ("create_directory", {"dirPath": "/project/docs"}, ("docs",)),
    ],
)
def test_an_edit_is_announced_with_its_files_and_without_its_content(
    tool: str, arguments: Any, paths: tuple[str, ...]
) -> None:
    written = {"writes": [f"/project/{path}" for path in paths], "directory": "/project"}
    assert question(tool, arguments) == ToolQuestion("announce", f"Edit {', '.join(paths)}", paths, invocation=written)


@pytest.mark.parametrize("tool", ["Read", "view", "grep_search"])
def test_the_files_that_a_tool_shows_are_checked(tool: str) -> None:
    assert question(tool, {"path": ".env"}).invocation == {"reads": ["/project/.env"], "directory": "/project"}


def test_an_edit_whose_files_are_not_found_is_judged_by_all_that_it_has() -> None:
    asked = question("Edit", {"target": "a.py"})
    assert (asked.ask, asked.paths) == ("announce", ())
    assert '"target": "a.py"' in asked.description


def test_members_are_read_in_both_spellings_of_vs_code() -> None:
    event = payload("bash", agent="copilot")
    other = {"hookEventName": event.pop("hook_event_name"), "sessionId": event.pop("session_id"), **event}
    assert read_event(other) == read_event(payload("bash", agent="copilot"))


@pytest.mark.parametrize("tool", ["Glob", "TodoWrite", "runSubagent", "cstp-check_action"])
def test_nothing_is_asked_about_tools_that_only_read_or_are_judged_elsewhere(tool: str) -> None:
    assert question(tool, {"path": ["odd"]}).ask == "nothing"


@pytest.mark.parametrize("tool", ["web_fetch", "write_bash", "run_task", "cstp-delete_all", "memory-create_entities"])
def test_any_other_tool_is_checked_by_its_name_and_arguments(tool: str) -> None:
    assert question(tool, {"x": 1}) == ToolQuestion("check", f'Call {tool} with {{"x": 1}}')


def test_an_answer_is_nested_for_vs_code_and_flat_for_the_cli() -> None:
    event = HookEvent(HookMoment.BEFORE_TOOL, "PreToolUse")
    said = {"permissionDecision": "deny", "permissionDecisionReason": "No"}
    written = write_answer(event, HookAnswer(HookDecision.DENY, "No"))
    assert written == {**said, "hookSpecificOutput": {"hookEventName": "PreToolUse", **said}}
    assert write_answer(event, HookAnswer()) == {}


def test_the_hook_runs_for_every_tool_and_not_at_the_end_of_a_turn() -> None:
    wanted = wanted_hooks("cstp hook copilot", seconds=8)
    assert "Stop" not in wanted
    assert not any("matcher" in hook for hook in wanted.values())
    assert all(hook["timeout"] > 8 for hook in wanted.values())
