"""The hooks of Claude Code: its payloads, and its answers.

Source: https://code.claude.com/docs/en/hooks as of Claude Code 2.1.302 (October 2026). `onFailure` exists since
2.1.295: without it, a hook that cannot start or times out lets the tool call through.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from cstp_grpc.agents.hooks import tool_rules
from cstp_grpc.agents.hooks.claude_format import MOMENTS, agent_timeout, group_hooks, read_payload, write_nested_answer
from cstp_grpc.agents.hooks.model import HookHost, Settings

TOOLS: Final[Mapping[str, Any]] = {
    "tools": [
        *tool_rules.command_rules("Bash"),
        *tool_rules.command_rules("PowerShell", **tool_rules.POWERSHELL),
        *tool_rules.reading_rules("Read {file_path}", ["file_path"], "Read"),
        *tool_rules.reading_rules("Search {path} for {pattern}", ["path", "glob"], "Grep"),
        *tool_rules.editing_rules("Edit {file_path}", "file_path", "Edit", "MultiEdit"),
        *tool_rules.editing_rules("Write {file_path}", "file_path", "Write"),
        *tool_rules.editing_rules("Edit {notebook_path}", "notebook_path", "NotebookEdit"),
        *tool_rules.own_mcp_rules("mcp__cstp__{}"),
        # The plugin's server has the plugin's name before its own.
        *tool_rules.own_mcp_rules("mcp__plugin_cstp_cstp__{}"),
        *tool_rules.other_rules("mcp__*"),
    ]
}
CHECKED_TOOLS: Final = "^(Bash|PowerShell|Read|Grep|Edit|MultiEdit|Write|NotebookEdit|mcp__.*)$"
"""The tools of the table. Anchored: Claude Code searches for it in names, and TodoWrite contains Write."""
ANNOUNCED_TOOLS: Final = "Edit|MultiEdit|Write|NotebookEdit"


def wanted_hooks(command: str, *, seconds: float, every_tool: bool = False) -> dict[str, Settings]:
    hook = {"type": "command", "command": command, "timeout": agent_timeout(seconds)}
    return group_hooks(
        MOMENTS,
        hook,
        judging={**hook, "onFailure": "block"},
        # Asynchronous: nobody waits for the end of an intent, and it blocks nothing.
        closing={**hook, "async": True},
        matchers=("*", "*") if every_tool else (CHECKED_TOOLS, ANNOUNCED_TOOLS),
    )


CLAUDE_CODE: Final = HookHost(
    read_payload,
    write_nested_answer,
    TOOLS,
    {"local": ".claude/settings.local.json", "project": ".claude/settings.json", "user": "~/.claude/settings.json"},
    wanted_hooks,
    project_folder_variable="CLAUDE_PROJECT_DIR",
)
