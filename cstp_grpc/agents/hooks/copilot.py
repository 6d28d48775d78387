"""The hooks of GitHub Copilot: its CLI, its cloud agent and its chat in VS Code.

All three read the same files, whose events have the names of Claude Code. Sources:
https://docs.github.com/en/copilot/reference/hooks-reference (October 2026), github/copilot-cli (changelog to 1.0.78),
https://code.visualstudio.com/docs/agent-customization/hooks and src/extension/chat in microsoft/vscode-copilot-chat.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from cstp_grpc.agents.hooks import tool_rules
from cstp_grpc.agents.hooks.claude_format import (
    BLOCKING_EXIT,
    agent_timeout,
    derive_call_id,
    find_patched_files,
    moments_without,
    read_payload,
    read_text,
    write_nested_answer,
)
from cstp_grpc.agents.hooks.model import HookAnswer, HookEvent, HookHost, HookMoment, Settings

MOMENTS: Final = moments_without("Stop")
"""The end of a turn is left out: its payload lacks the agent's message."""

SHELLS: Final = ("Bash", "bash", "run_in_terminal", "runTerminalCommand")
EDITORS: Final = (
    "Edit",
    "Write",
    "edit",
    "create",
    "apply_patch",
    "str_replace_editor",
    "create_file",
    "replace_string_in_file",
    "multi_replace_string_in_file",
    "insert_edit_into_file",
    "edit_notebook_file",
    "create_directory",
    "createFile",
    "editFiles",
)
FILE_READERS: Final = ("Read", "Grep", "view", "grep", "rg", "read_file", "grep_search")
"""Tools that show the contents of files."""
READERS: Final = (
    "Glob",
    "TodoWrite",
    "AskUserQuestion",
    "glob",
    "ask_user",
    "update_todo",
    "read_bash",
    "read_powershell",
    "report_intent",
    "view_image",
    "list_dir",
    "file_search",
    "semantic_search",
    "test_search",
    "search_workspace_symbols",
    "read_project_structure",
    "get_errors",
    "get_changed_files",
    "get_vscode_api",
    "get_search_view_results",
    "get_project_setup_info",
    "get_terminal_output",
    "get_task_output",
    "copilot_getNotebookSummary",
    "read_notebook_cell_output",
    "manage_todo_list",
    "terminal_last_command",
    "terminal_selection",
    "test_failure",
    "tool_search",
    "vscode_askQuestions",
)
"""Tools that change nothing outside of the session. VS Code runs hooks for every tool, whatever the settings say."""
DELEGATES: Final = ("Agent", "Task", "task", "runSubagent", "search_subagent", "execution_subagent")
"""Tools that start other agents, whose own calls are checked."""
TOOLS: Final[Mapping[str, Any]] = {
    "tools": [
        *tool_rules.command_rules(*SHELLS),
        *tool_rules.command_rules("powershell", **tool_rules.POWERSHELL),
        *tool_rules.reading_rules("Read {files}", ["files", "glob", "includePattern"], *FILE_READERS),
        *tool_rules.editing_rules("Edit {files}", "files", *EDITORS),
        *tool_rules.unasked_rules(*READERS, *DELEGATES),
        *tool_rules.own_mcp_rules("cstp-{}"),
        *tool_rules.own_mcp_rules("mcp_cstp_{}"),
        # All others are checked by their names and arguments.
    ]
}
"""The names of the CLI, in Claude Code's spelling and in its own, and the names of VS Code."""
OTHER_SPELLINGS: Final = {"hookEventName": "hook_event_name", "sessionId": "session_id"}
PATH_ARGUMENTS: Final = ("path", "file_path", "filePath", "dirPath")


def read_event(payload: Mapping[str, Any], project_folder: str | None = None) -> HookEvent:
    """Return the event of a payload. Raises ValueError for an invalid payload."""
    # VS Code's page documents this spelling, but VS Code sends the same names as the others.
    renamed = {name: payload[spelled] for spelled, name in OTHER_SPELLINGS.items() if spelled in payload}
    payload = {**renamed, **payload}
    # A patch is the whole input of its tool in the CLI.
    if isinstance(patch := payload.get("tool_input"), str):
        payload = {**payload, "tool_input": {"input": patch}}
    event = read_payload(payload, project_folder, moments=MOMENTS)
    if not event.tool:
        return event
    call = event.call_id or derive_call_id(read_text(payload, "session_id"), event.tool, event.arguments)
    if event.tool not in (*EDITORS, *FILE_READERS):
        return event._replace(call_id=call)
    folder = read_text(payload, "cwd") or "/"
    files = dict.fromkeys(str(Path(folder, path)) for path in find_edited_files(event.arguments, folder))
    return event._replace(arguments={**event.arguments, "files": list(files)}, call_id=call)


def find_edited_files(arguments: Mapping[str, Any], folder: str) -> Iterator[str]:
    for name in PATH_ARGUMENTS:
        if path := read_text(arguments, name):
            yield path
    for name in ("input", "patch"):
        yield from find_patched_files(read_text(arguments, name), folder)
    for name in ("replacements", "files"):
        listed = arguments.get(name)
        for each in listed if isinstance(listed, list) else ():
            if path := each if isinstance(each, str) else read_text(each, "filePath") if isinstance(each, dict) else "":
                yield path


def write_answer(event: HookEvent, answer: HookAnswer) -> dict[str, Any]:
    """Return an answer as Copilot reads it: nested for VS Code, and flat for the CLI."""
    written = write_nested_answer(event, answer)
    specific = written.get("hookSpecificOutput", {})
    return written | {name: value for name, value in specific.items() if name != "hookEventName"}


def wanted_hooks(command: str, *, seconds: float, every_tool: bool = False) -> dict[str, Settings]:
    del every_tool  # Hooks always run for every tool: VS Code has no other way.
    hook = {"type": "command", "command": command, "timeout": agent_timeout(seconds)}
    judging = {**hook, "command": f"{command} {BLOCKING_EXIT}"}
    return {event: judging if moment is HookMoment.BEFORE_TOOL else hook for event, moment in MOMENTS.items()}


COPILOT: Final = HookHost(
    read_event,
    write_answer,
    TOOLS,
    {"user": "~/.copilot/hooks/cstp.json", "project": ".github/hooks/cstp.json"},
    wanted_hooks,
    empty_settings='{\n  "version": 1\n}\n',
    hears_last_message=False,
    waiting_program="copilot",
)
