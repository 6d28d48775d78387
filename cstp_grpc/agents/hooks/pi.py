"""The hooks of Pi: events and answers of our extension, which runs `cstp hook` for each tool call.

Source: docs/extensions.md in the package @earendil-works/pi-coding-agent 1.6. A tool is not called if an extension
blocks it, and the model gets the reason. Each tool that a script of the tool `codemode` calls is checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

from cstp_grpc.agents.hooks import tool_rules
from cstp_grpc.agents.hooks.claude_format import moments_without, read_payload, read_text
from cstp_grpc.agents.hooks.model import HookEvent
from cstp_grpc.agents.hooks.plugin_text import plugin_host

MOMENTS: Final = moments_without("Stop")
EDITORS: Final = ("edit", "write")
FILE_READERS: Final = ("read", "grep")
UNASKED: Final = ("find", "ls", "codemode", "tool_search")
"""Tools that change nothing outside of the session, and `codemode`, whose scripts can only call tools."""
TOOLS: Final[Mapping[str, Any]] = {
    "tools": [
        *tool_rules.command_rules("bash"),
        *tool_rules.command_rules("powershell", **tool_rules.POWERSHELL),
        *tool_rules.reading_rules("Read {path}", ["path", "glob"], *FILE_READERS),
        *tool_rules.editing_rules("Edit {path}", "path", *EDITORS),
        *tool_rules.unasked_rules(*UNASKED),
        *tool_rules.own_mcp_rules("mcp__cstp__{}"),
        # All others, such as MCP tools, are checked by their names and arguments.
    ]
}


def read_event(payload: Mapping[str, Any], project_folder: str | None = None) -> HookEvent:
    """Return the event of a payload. Raises ValueError for an invalid payload."""
    event = read_payload(payload, project_folder, moments=MOMENTS)
    if event.tool not in (*EDITORS, *FILE_READERS) or not (path := read_text(event.arguments, "path")):
        return event
    # Read like Pi: a path may be a URL.
    path = path.removeprefix("@")
    path = unquote(path[len("file://") :]) if path.startswith("file://") else path
    path = str(Path(read_text(payload, "cwd") or "/", Path(path).expanduser()))
    return event._replace(arguments={**event.arguments, "path": path})


PI: Final = plugin_host(
    "pi_plugin.js",
    read_event,
    TOOLS,
    {"user": "~/.pi/agent/extensions/cstp.js", "project": ".pi/extensions/cstp.js"},
    unasked=UNASKED,
    editors=EDITORS,
)
