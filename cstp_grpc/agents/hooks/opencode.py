"""The hooks of opencode: events and answers of a plugin of ours, which runs `cstp hook` for each call of a tool.

By https://opencode.ai/docs/plugins, tried with 1.18. A tool is not called if a hook before it throws an error, and the
error is what the model gets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from cstp_grpc.agents.hooks.apply_patch import find_patched_files
from cstp_grpc.agents.hooks.claude_format import read_payload, read_text
from cstp_grpc.agents.hooks.model import HookEvent, HookHost, HookMoment
from cstp_grpc.agents.hooks.plugin_text import compose_plugin, write_plugin_answer
from cstp_grpc.agents.hooks.tool_rules import ANNOUNCE, CHECK, NOTHING, own_mcp_rules

MOMENTS: Final[Mapping[str, HookMoment]] = {
    "SessionStart": HookMoment.SESSION_STARTED,
    "PreToolUse": HookMoment.BEFORE_TOOL,
    "PostToolUse": HookMoment.AFTER_TOOL,
}
EDITORS: Final = ("edit", "write", "apply_patch")
FILE_READERS: Final = ("read", "grep")
READS: Final = ["files", "include"]
UNASKED: Final = ("glob", "list", "todowrite", "todoread", "task", "skill", "question", "invalid")
"""Tools that change nothing outside of the session, and `task`, which starts agents whose own calls are judged."""
TOOLS: Final[Mapping[str, Any]] = {
    "tools": [
        {"tool": "bash", "ask": CHECK, "description": "{command}", "command": "command", "directory": "workdir"},
        *({"tool": tool, "ask": CHECK, "description": "Read {files}", "reads": READS} for tool in FILE_READERS),
        *({"tool": tool, "ask": ANNOUNCE, "description": "Edit {files}", "paths": ["files"]} for tool in EDITORS),
        *({"tool": tool, "ask": NOTHING} for tool in UNASKED),
        *own_mcp_rules("cstp_{}"),
        # Any other, such as those of MCP, is checked by its name and arguments.
    ]
}


def read_event(payload: Mapping[str, Any], project_folder: str | None = None) -> HookEvent:
    """Return the event of a payload. Raises ValueError for what is no payload of a hook."""
    event = read_payload(payload, MOMENTS, project_folder)
    if event.tool not in (*EDITORS, *FILE_READERS):
        return event
    folder = read_text(payload, "cwd") or "/"
    paths = [path for name in ("filePath", "path") if (path := read_text(event.arguments, name))]
    files = [str(Path(folder, path)) for path in paths]
    files += find_patched_files(read_text(event.arguments, "patchText"), folder)
    return replace(event, arguments={**event.arguments, "files": files})


def write_plugin(words: Sequence[str], *, seconds: float, every_tool: bool = False) -> str:
    """Return the plugin that runs the words of a command."""
    tools = {"UNASKED": () if every_tool else UNASKED, "EDITORS": EDITORS}
    return compose_plugin("opencode_plugin.js", words, seconds=seconds, tools=tools)


OPENCODE: Final = HookHost(
    read_event,
    write_plugin_answer,
    lambda *_, **__: {},
    TOOLS,
    {"user": "~/.config/opencode/plugins/cstp.js", "project": ".opencode/plugins/cstp.js"},
    hears_last_message=False,
    shows_notices=False,
    write_plugin=write_plugin,
)
