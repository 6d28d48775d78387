"""The hooks of Gemini CLI: its payloads, and its answers.

Source: docs/hooks/reference.md and packages/core/src/hooks in google-gemini/gemini-cli as of 0.56 (August 2026). `ask`
exists since 0.36: before, it lets the tool call through.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from cstp_grpc.agents.hooks import claude_format
from cstp_grpc.agents.hooks.mcp_servers import FOREIGN_NOTE, OWN_NAME, is_own_server
from cstp_grpc.agents.hooks.model import HookAnswer, HookDecision, HookEvent, HookHost, HookMoment, Settings
from cstp_grpc.agents.hooks.tool_rules import command_rules, editing_rules, other_rules, own_mcp_rules, reading_rules

MOMENTS: Final[Mapping[str, HookMoment]] = {
    "SessionStart": HookMoment.SESSION_STARTED,
    "BeforeAgent": HookMoment.PROMPT_SUBMITTED,
    "BeforeTool": HookMoment.BEFORE_TOOL,
    "AfterTool": HookMoment.AFTER_TOOL,
    "AfterAgent": HookMoment.TURN_ENDED,
}
TOLD_EVENTS: Final[Mapping[HookMoment, str]] = {
    HookMoment.SESSION_STARTED: "SessionStart",
    HookMoment.PROMPT_SUBMITTED: "BeforeAgent",
    HookMoment.AFTER_TOOL: "AfterTool",
}
"""The events whose answers may contain context for the model, by their names."""

EDITORS: Final = ("replace", "write_file")
PATH_ARGUMENT: Final = "file_path"
SEARCHED: Final = ["dir_path", "path", "include_pattern", "include"]
"""The arguments of searches that are files, folders or patterns, by their names in old and new versions."""
OWN_TOOLS: Final = f"mcp_{OWN_NAME}_"
"""The prefix of the names of the tools of `cstp mcp`."""
TOOLS: Final[Mapping[str, Any]] = {
    "tools": [
        *command_rules("run_shell_command", directory="dir_path"),
        *reading_rules("Read {file_path}", ["file_path", "absolute_path"], "read_file"),
        *reading_rules("Read {include}", ["include", "paths"], "read_many_files"),
        *reading_rules("Search {dir_path} {path} for {pattern}", SEARCHED, "search_file_content", "grep_search"),
        *editing_rules("Edit {file_path}", PATH_ARGUMENT, "replace"),
        *editing_rules("Write {file_path}", PATH_ARGUMENT, "write_file"),
        *own_mcp_rules(OWN_TOOLS + "{}"),
        *other_rules("mcp_*"),
    ]
}
CHECKED_TOOLS: Final = (
    "^(run_shell_command|read_file|read_many_files|search_file_content|grep_search|replace|write_file|mcp_.*)$"
)
ANNOUNCED_TOOLS: Final = "^(replace|write_file)$"


def read_event(payload: Mapping[str, Any], project_folder: str | None = None) -> HookEvent:
    """Return the event of a payload. Raises ValueError for an invalid payload."""
    event = claude_format.read_payload(payload, project_folder, moments=MOMENTS)
    if event.moment is HookMoment.TURN_ENDED:
        return event._replace(last_message=claude_format.read_text(payload, "prompt_response"), prompt="")
    if not event.tool:
        return event
    arguments = dict(event.arguments)
    if event.tool in EDITORS and (path := claude_format.read_text(arguments, PATH_ARGUMENT)):
        # A relative path starts at the session's folder, which may be below the root of the project.
        arguments[PATH_ARGUMENT] = str(Path(claude_format.read_text(payload, "cwd") or "/", path))
    response = payload.get("tool_response")
    return event._replace(
        tool=event.tool + FOREIGN_NOTE if imitates_own_tool(payload, event.tool) else event.tool,
        arguments=arguments,
        call_id=claude_format.derive_call_id(
            claude_format.read_text(payload, "session_id"), event.tool, event.arguments
        ),
        failed=isinstance(response, dict) and bool(response.get("error")),
    )


def imitates_own_tool(payload: Mapping[str, Any], tool: str) -> bool:
    """Return whether a tool of another MCP server has a name like those of `cstp mcp`."""
    server = payload.get("mcp_context")
    if not isinstance(server, dict):
        return False
    if server.get("server_name") != OWN_NAME:
        # The tool `action` of a server `cstp_check` has the same name as `check_action` of ours.
        return tool.startswith(OWN_TOOLS)
    given = server.get("args")
    words = [word for word in given if isinstance(word, str)] if isinstance(given, list) else []
    command = claude_format.read_text(server, "command")
    url = claude_format.read_text(server, "url") or claude_format.read_text(server, "tcp")
    return not is_own_server([command, *words] if command else [], url)


def write_answer(event: HookEvent, answer: HookAnswer) -> dict[str, Any]:
    """Return an answer as Gemini CLI reads it; an empty object for an empty answer."""
    written: dict[str, Any] = {}
    notices = [answer.notice]
    if event.moment is HookMoment.BEFORE_TOOL and answer.decision in claude_format.PERMISSIONS:
        written = {"decision": claude_format.PERMISSIONS[answer.decision], "reason": answer.reason}
        if answer.decision is HookDecision.ASK:
            # A question shows the user only this text.
            notices.append(answer.reason)
    if answer.keep_going:
        written = {"decision": "deny", "reason": answer.reason}
    if notice := "\n".join(filter(None, notices)):
        written["systemMessage"] = notice
    if answer.context and (name := TOLD_EVENTS.get(event.moment)):
        written["hookSpecificOutput"] = {"hookEventName": name, "additionalContext": answer.context}
    return written


def wanted_hooks(command: str, *, seconds: float, every_tool: bool = False) -> dict[str, Settings]:
    # Other agents count seconds.
    timeout = claude_format.agent_timeout(seconds) * 1000
    hook = {"name": "cstp", "type": "command", "command": command, "timeout": timeout}
    judging = {**hook, "command": f"{command} {claude_format.BLOCKING_EXIT}"}
    matchers = ("*", "*") if every_tool else (CHECKED_TOOLS, ANNOUNCED_TOOLS)
    return claude_format.group_hooks(MOMENTS, hook, judging=judging, closing=hook, matchers=matchers)


GEMINI_CLI: Final = HookHost(
    read_event,
    write_answer,
    TOOLS,
    {"user": "~/.gemini/settings.json", "project": ".gemini/settings.json"},
    wanted_hooks,
    tells_before_tool=False,
    waiting_program="gemini",
)
