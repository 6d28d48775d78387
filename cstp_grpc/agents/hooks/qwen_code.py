"""The hooks of Qwen Code: payloads and answers of Claude Code, with the tools of Gemini CLI.

Source: docs/features/hooks.md in the package @qwen-code/qwen-code 0.24.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from cstp_grpc.agents.hooks import claude_format
from cstp_grpc.agents.hooks.model import HookAnswer, HookEvent, HookHost, HookMoment, Settings
from cstp_grpc.agents.hooks.tool_rules import command_rules, editing_rules, other_rules, own_mcp_rules, reading_rules

TOOLS: Final[Mapping[str, Any]] = {
    "tools": [
        *command_rules("run_shell_command", "monitor", directory="directory"),
        *reading_rules("Read {file_path}", ["file_path"], "read_file"),
        *reading_rules("Search {path} for {pattern}", ["path", "glob"], "grep_search"),
        *editing_rules("Edit {file_path}", "file_path", "edit"),
        *editing_rules("Write {file_path}", "file_path", "write_file"),
        *editing_rules("Edit {notebook_path}", "notebook_path", "notebook_edit"),
        *own_mcp_rules("mcp__cstp__{}"),
        *other_rules("mcp__*"),
    ]
}
ANNOUNCED_TOOLS: Final = "^(edit|write_file|notebook_edit)$"
CHECKED_TOOLS: Final = "^(run_shell_command|monitor|read_file|grep_search|edit|write_file|notebook_edit|mcp__.*)$"


def write_answer(event: HookEvent, answer: HookAnswer) -> dict[str, Any]:
    """Return an answer as Qwen Code reads it; its model gets context after a tool, not before."""
    if event.moment is HookMoment.BEFORE_TOOL:
        answer = answer._replace(context="")
    written = claude_format.write_nested_answer(event, answer)
    if event.moment is HookMoment.AFTER_TOOL and answer.context:
        written["hookSpecificOutput"] = {"hookEventName": event.name, "additionalContext": answer.context}
    return written


def wanted_hooks(command: str, *, seconds: float, every_tool: bool = False) -> dict[str, Settings]:
    hook = {"type": "command", "command": command, "timeout": claude_format.agent_timeout(seconds)}
    judging = {**hook, "command": f"{command} {claude_format.BLOCKING_EXIT}"}
    matchers = ("*", "*") if every_tool else (CHECKED_TOOLS, ANNOUNCED_TOOLS)
    return claude_format.group_hooks(claude_format.MOMENTS, hook, judging=judging, closing=hook, matchers=matchers)


QWEN_CODE: Final = HookHost(
    claude_format.read_payload,
    write_answer,
    TOOLS,
    {"user": "~/.qwen/settings.json", "project": ".qwen/settings.json"},
    wanted_hooks,
    # Documented, but 0.24 does not send it to the model.
    tells_before_tool=False,
)
