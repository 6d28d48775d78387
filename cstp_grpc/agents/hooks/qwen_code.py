"""The hooks of Qwen Code: payloads and answers as Claude Code has them, about tools as Gemini CLI has them.

By docs/features/hooks.md in the package @qwen-code/qwen-code 0.24.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from cstp_grpc.agents.hooks.claude_format import BLOCKING_EXIT, agent_timeout, read_payload, write_nested_answer
from cstp_grpc.agents.hooks.model import HookAnswer, HookEvent, HookHost, HookMoment, Settings
from cstp_grpc.agents.hooks.tool_rules import ANNOUNCE, CHECK, own_mcp_rules

MOMENTS: Final[Mapping[str, HookMoment]] = {
    "SessionStart": HookMoment.SESSION_STARTED,
    "UserPromptSubmit": HookMoment.PROMPT_SUBMITTED,
    "PreToolUse": HookMoment.BEFORE_TOOL,
    "PostToolUse": HookMoment.AFTER_TOOL,
    "PostToolUseFailure": HookMoment.AFTER_TOOL,
    "Stop": HookMoment.TURN_ENDED,
}
TOOLS: Final[Mapping[str, Any]] = {
    "tools": [
        *(
            {"tool": tool, "ask": CHECK, "description": "{command}", "command": "command", "directory": "directory"}
            for tool in ("run_shell_command", "monitor")
        ),
        {"tool": "read_file", "ask": CHECK, "description": "Read {file_path}", "reads": ["file_path"]},
        {"tool": "grep_search", "ask": CHECK, "description": "Search {path} for {pattern}", "reads": ["path", "glob"]},
        {"tool": "edit", "ask": ANNOUNCE, "description": "Edit {file_path}", "paths": ["file_path"]},
        {"tool": "write_file", "ask": ANNOUNCE, "description": "Write {file_path}", "paths": ["file_path"]},
        {"tool": "notebook_edit", "ask": ANNOUNCE, "description": "Edit {notebook_path}", "paths": ["notebook_path"]},
        *own_mcp_rules("mcp__cstp__{}"),
        {"tool": "mcp__*", "ask": CHECK, "description": "Call {tool} with {arguments}"},
    ]
}
ANNOUNCED_TOOLS: Final = "^(edit|write_file|notebook_edit)$"
CHECKED_TOOLS: Final = "^(run_shell_command|monitor|read_file|grep_search|edit|write_file|notebook_edit|mcp__.*)$"


def read_event(payload: Mapping[str, Any], project_folder: str | None = None) -> HookEvent:
    """Return the event of a payload. Raises ValueError for what is no payload of a hook."""
    return read_payload(payload, MOMENTS, project_folder)


def write_answer(event: HookEvent, answer: HookAnswer) -> dict[str, Any]:
    """Return an answer as Qwen Code reads it; its model is told something after a tool, not before."""
    if event.moment is HookMoment.BEFORE_TOOL:
        answer = replace(answer, context="")
    written = write_nested_answer(event, answer)
    if event.moment is HookMoment.AFTER_TOOL and answer.context:
        written["hookSpecificOutput"] = {"hookEventName": event.name, "additionalContext": answer.context}
    return written


def wanted_hooks(command: str, *, seconds: float, every_tool: bool = False) -> dict[str, Settings]:
    """Return the entries that the settings of Qwen Code need: a group of hooks for each event."""
    checked, announced = ("*", "*") if every_tool else (CHECKED_TOOLS, ANNOUNCED_TOOLS)
    hook = {"type": "command", "command": command, "timeout": agent_timeout(seconds)}
    closing = {"matcher": announced, "hooks": [hook]}
    return {
        "SessionStart": {"hooks": [hook]},
        "UserPromptSubmit": {"hooks": [hook]},
        "PreToolUse": {"matcher": checked, "hooks": [{**hook, "command": f"{command} {BLOCKING_EXIT}"}]},
        "PostToolUse": closing,
        "PostToolUseFailure": closing,
        "Stop": {"hooks": [hook]},
    }


QWEN_CODE: Final = HookHost(
    read_event,
    write_answer,
    wanted_hooks,
    TOOLS,
    {"user": "~/.qwen/settings.json", "project": ".qwen/settings.json"},
    # Its page describes it, but 0.24 does not send it to the model.
    tells_before_tool=False,
)
