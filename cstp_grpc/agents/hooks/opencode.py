"""The hooks of opencode: events and answers of our plugin, which runs `cstp hook` for each tool call.

Source: https://opencode.ai/docs/plugins, tried with 1.18. A tool is not called if a hook before it throws an error,
and the model gets the error.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from cstp_grpc.agents.hooks.claude_format import find_patched_files, moments_without, read_payload, read_text
from cstp_grpc.agents.hooks.model import HookEvent
from cstp_grpc.agents.hooks.plugin_text import plugin_host
from cstp_grpc.agents.hooks.tool_rules import command_rules, editing_rules, own_mcp_rules, reading_rules, unasked_rules

MOMENTS: Final = moments_without("UserPromptSubmit", "PostToolUseFailure", "Stop")
EDITORS: Final = ("edit", "write", "apply_patch")
FILE_READERS: Final = ("read", "grep")
UNASKED: Final = ("glob", "list", "todowrite", "todoread", "task", "skill", "question", "invalid")
"""Tools that change nothing outside of the session, and `task`, which starts agents whose own calls are checked."""
TOOLS: Final[Mapping[str, Any]] = {
    "tools": [
        *command_rules("bash", directory="workdir"),
        *reading_rules("Read {files}", ["files", "include"], *FILE_READERS),
        *editing_rules("Edit {files}", "files", *EDITORS),
        *unasked_rules(*UNASKED),
        *own_mcp_rules("cstp_{}"),
        # All others, such as MCP tools, are checked by their names and arguments.
    ]
}


def read_event(payload: Mapping[str, Any], project_folder: str | None = None) -> HookEvent:
    """Return the event of a payload. Raises ValueError for an invalid payload."""
    event = read_payload(payload, project_folder, moments=MOMENTS)
    if event.tool not in (*EDITORS, *FILE_READERS):
        return event
    folder = read_text(payload, "cwd") or "/"
    paths = [path for name in ("filePath", "path") if (path := read_text(event.arguments, name))]
    files = [str(Path(folder, path)) for path in paths]
    files += find_patched_files(read_text(event.arguments, "patchText"), folder)
    return event._replace(arguments={**event.arguments, "files": files})


OPENCODE: Final = plugin_host(
    "opencode_plugin.js",
    read_event,
    TOOLS,
    {"user": "~/.config/opencode/plugins/cstp.js", "project": ".opencode/plugins/cstp.js"},
    unasked=UNASKED,
    editors=EDITORS,
)
