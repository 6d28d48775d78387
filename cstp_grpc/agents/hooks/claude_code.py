"""The hooks of Claude Code: its payloads, and its answers.

By https://code.claude.com/docs/en/hooks as of Claude Code 2.1.302 (October 2026). `onFailure` is known since 2.1.295:
without it, a hook that cannot start or takes too long lets the tool call through.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from cstp_grpc.agents.hooks.claude_format import agent_timeout, read_payload, write_nested_answer
from cstp_grpc.agents.hooks.model import HookEvent, HookHost, HookMoment, Settings
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
        {"tool": "Bash", "ask": CHECK, "description": "{command}", "command": "command"},
        {"tool": "PowerShell", "ask": CHECK, "description": "{command}", "command": "command", "shell": "powershell"},
        {"tool": "Read", "ask": CHECK, "description": "Read {file_path}", "reads": ["file_path"]},
        {"tool": "Grep", "ask": CHECK, "description": "Search {path} for {pattern}", "reads": ["path", "glob"]},
        {"tool": "Edit", "ask": ANNOUNCE, "description": "Edit {file_path}", "paths": ["file_path"]},
        {"tool": "MultiEdit", "ask": ANNOUNCE, "description": "Edit {file_path}", "paths": ["file_path"]},
        {"tool": "Write", "ask": ANNOUNCE, "description": "Write {file_path}", "paths": ["file_path"]},
        {"tool": "NotebookEdit", "ask": ANNOUNCE, "description": "Edit {notebook_path}", "paths": ["notebook_path"]},
        *own_mcp_rules("mcp__cstp__{}"),
        # The plugin's server has the plugin's name before its own.
        *own_mcp_rules("mcp__plugin_cstp_cstp__{}"),
        {"tool": "mcp__*", "ask": CHECK, "description": "Call {tool} with {arguments}"},
    ]
}
CHECKED_TOOLS: Final = "^(Bash|PowerShell|Read|Grep|Edit|MultiEdit|Write|NotebookEdit|mcp__.*)$"
"""The tools of the table. Anchored: Claude Code searches names for it, and TodoWrite contains Write."""
ANNOUNCED_TOOLS: Final = "Edit|MultiEdit|Write|NotebookEdit"


def read_event(payload: Mapping[str, Any], project_folder: str | None = None) -> HookEvent:
    """Return the event of a payload. Raises ValueError for what is no payload of a hook."""
    return read_payload(payload, MOMENTS, project_folder)


def wanted_hooks(command: str, *, seconds: float, every_tool: bool = False) -> dict[str, Settings]:
    """Return the entries that the settings of Claude Code need: a group of hooks for each event."""
    checked, announced = ("*", "*") if every_tool else (CHECKED_TOOLS, ANNOUNCED_TOOLS)
    hook = {"type": "command", "command": command, "timeout": agent_timeout(seconds)}
    # Nobody waits for the end of an intent, and it blocks nothing.
    closing = {"matcher": announced, "hooks": [{**hook, "async": True}]}
    return {
        "SessionStart": {"hooks": [hook]},
        "UserPromptSubmit": {"hooks": [hook]},
        "PreToolUse": {"matcher": checked, "hooks": [{**hook, "onFailure": "block"}]},
        "PostToolUse": closing,
        "PostToolUseFailure": closing,
        "Stop": {"hooks": [hook]},
    }


CLAUDE_CODE: Final = HookHost(
    read_event,
    write_nested_answer,
    wanted_hooks,
    TOOLS,
    {
        "local": ".claude/settings.local.json",
        "project": ".claude/settings.json",
        "user": "~/.claude/settings.json",
    },
    project_folder_variable="CLAUDE_PROJECT_DIR",
)
