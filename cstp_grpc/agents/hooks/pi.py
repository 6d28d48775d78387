"""The hooks of Pi: events and answers of an extension of ours, which runs `cstp hook` for each call of a tool.

By docs/extensions.md in the package @earendil-works/pi-coding-agent 1.6. A tool is not called if an extension blocks
it, and the reason is what the model gets. Tools that a script of the tool `codemode` calls are judged one by one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

from cstp_grpc.agents.hooks.claude_format import read_payload, read_text
from cstp_grpc.agents.hooks.model import HookEvent, HookHost, HookMoment
from cstp_grpc.agents.hooks.plugin_text import compose_plugin, write_plugin_answer
from cstp_grpc.agents.hooks.tool_rules import ANNOUNCE, CHECK, NOTHING, own_mcp_rules

MOMENTS: Final[Mapping[str, HookMoment]] = {
    "SessionStart": HookMoment.SESSION_STARTED,
    "UserPromptSubmit": HookMoment.PROMPT_SUBMITTED,
    "PreToolUse": HookMoment.BEFORE_TOOL,
    "PostToolUse": HookMoment.AFTER_TOOL,
    "PostToolUseFailure": HookMoment.AFTER_TOOL,
}
EDITORS: Final = ("edit", "write")
FILE_READERS: Final = ("read", "grep")
READS: Final = ["path", "glob"]
UNASKED: Final = ("find", "ls", "codemode", "tool_search")
"""Tools that change nothing outside of the session, and `codemode`, whose scripts can but call tools."""
TOOLS: Final[Mapping[str, Any]] = {
    "tools": [
        {"tool": "bash", "ask": CHECK, "description": "{command}", "command": "command"},
        {"tool": "powershell", "ask": CHECK, "description": "{command}", "command": "command", "shell": "powershell"},
        *({"tool": tool, "ask": CHECK, "description": "Read {path}", "reads": READS} for tool in FILE_READERS),
        *({"tool": tool, "ask": ANNOUNCE, "description": "Edit {path}", "paths": ["path"]} for tool in EDITORS),
        *({"tool": tool, "ask": NOTHING} for tool in UNASKED),
        *own_mcp_rules("mcp__cstp__{}"),
        # Any other, such as those of MCP, is checked by its name and arguments.
    ]
}


def read_event(payload: Mapping[str, Any], project_folder: str | None = None) -> HookEvent:
    """Return the event of a payload. Raises ValueError for what is no payload of a hook."""
    event = read_payload(payload, MOMENTS, project_folder)
    if event.tool not in (*EDITORS, *FILE_READERS) or not (path := read_text(event.arguments, "path")):
        return event
    # As Pi reads a path, which may be a URL.
    path = path.removeprefix("@")
    path = unquote(path[len("file://") :]) if path.startswith("file://") else path
    path = str(Path(read_text(payload, "cwd") or "/", Path(path).expanduser()))
    return replace(event, arguments={**event.arguments, "path": path})


def write_plugin(words: Sequence[str], *, seconds: float, every_tool: bool = False) -> str:
    """Return the extension that runs the words of a command."""
    tools = {"UNASKED": () if every_tool else UNASKED, "EDITORS": EDITORS}
    return compose_plugin("pi_plugin.js", words, seconds=seconds, tools=tools)


PI: Final = HookHost(
    read_event,
    write_plugin_answer,
    lambda *_, **__: {},
    TOOLS,
    {"user": "~/.pi/agent/extensions/cstp.js", "project": ".pi/extensions/cstp.js"},
    hears_last_message=False,
    shows_notices=False,
    write_plugin=write_plugin,
)
