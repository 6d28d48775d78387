"""The hooks of Cursor: its payloads, and its answers.

Source: https://cursor.com/docs/hooks (October 2026) and the measurements of griddynamics/rosetta with Cursor 3.9
(docs/hooks). The model reads the `user_message` of a denial. `ask` is not written: edits ignore it, and in the run mode
Auto-review so do commands, which then run (forum.cursor.com, topic 173694, Cursor 3.21).
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from cstp_grpc.agents.hooks.claude_format import PERMISSIONS, agent_timeout, read_arguments, read_event_name, read_text
from cstp_grpc.agents.hooks.mcp_servers import FOREIGN_NOTE, OWN_NAME, is_own_server
from cstp_grpc.agents.hooks.model import HookAnswer, HookEvent, HookHost, HookMoment, Settings
from cstp_grpc.agents.hooks.tool_rules import command_rules, editing_rules, other_rules, own_mcp_rules, reading_rules

SHELL_EVENT: Final = "beforeShellExecution"
MCP_EVENT: Final = "beforeMCPExecution"
MOMENTS: Final[Mapping[str, HookMoment]] = {
    "sessionStart": HookMoment.SESSION_STARTED,
    SHELL_EVENT: HookMoment.BEFORE_TOOL,
    MCP_EVENT: HookMoment.BEFORE_TOOL,
    "preToolUse": HookMoment.BEFORE_TOOL,
    "postToolUse": HookMoment.AFTER_TOOL,
    "postToolUseFailure": HookMoment.AFTER_TOOL,
    "afterAgentResponse": HookMoment.TURN_ENDED,
}
"""The user's prompt is left out: the answer to it cannot contain context for the model."""
TOLD_MOMENTS: Final = frozenset({HookMoment.SESSION_STARTED, HookMoment.AFTER_TOOL})
"""The moments whose answers may contain context for the model."""

TOOLS: Final[Mapping[str, Any]] = {
    "tools": [
        *command_rules("Shell", directory="cwd"),
        *reading_rules("Read {files}", ["files"], "Read"),
        *reading_rules("Search {files} for {pattern}", ["files", "glob"], "Grep"),
        *editing_rules("Edit {files}", "files", "Write"),
        *editing_rules("Delete {files}", "files", "Delete"),
        *own_mcp_rules(f"MCP:{OWN_NAME}:{{}}"),
        *other_rules("MCP:*"),
    ]
}
"""MCP tools are named with their server: `MCP:SERVER:TOOL`."""
PATH_ARGUMENTS: Final = ("file_path", "path")
EDITED_TOOLS: Final = "^(Write|Delete)$"
OTHER_TOOLS: Final = "^(?!Shell$|MCP:)"
"""The tools without an event of their own."""


def read_event(payload: Mapping[str, Any], project_folder: str | None = None) -> HookEvent:
    """Return the event of a payload. Raises ValueError for an invalid payload."""
    name = read_event_name(payload)
    roots = payload.get("workspace_roots")
    root = roots[0] if isinstance(roots, list) and roots and isinstance(roots[0], str) else ""
    folder = project_folder or root or "/"
    tool, arguments = read_call(payload, name, folder)
    return HookEvent(
        MOMENTS.get(name, HookMoment.OTHER),
        name,
        tool=tool,
        arguments=arguments,
        call_id=read_text(payload, "tool_use_id"),
        failed=name == "postToolUseFailure",
        last_message=read_text(payload, "text") if name == "afterAgentResponse" else "",
        # Cursor ignores the answer: nothing can be asked of the agent.
        continued=True,
        folder=folder,
    )


def read_call(payload: Mapping[str, Any], name: str, folder: str) -> tuple[str, Mapping[str, Any]]:
    """Return the tool and the arguments of a call, both empty at other events. Raises ValueError."""
    if name == MCP_EVENT:
        return read_mcp_call(payload)
    if name == SHELL_EVENT:
        if not (command := read_text(payload, "command")):
            raise ValueError("the payload names no command")
        return "Shell", {"command": command, "cwd": read_text(payload, "cwd")}
    arguments = read_arguments(payload, MOMENTS.get(name, HookMoment.OTHER))
    if not arguments:
        return read_text(payload, "tool_name"), {}
    paths = [path for key in PATH_ARGUMENTS if isinstance(path := arguments.get(key), str) and path]
    return read_text(payload, "tool_name"), {**arguments, "files": [str(Path(folder, path)) for path in paths]}


def read_mcp_call(payload: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """Return the tool and the arguments of a call to an MCP server. Raises ValueError."""
    server, tool = read_text(payload, "mcp_server_name"), read_text(payload, "tool_name")
    given = payload.get("tool_input")
    arguments = json.loads(given) if isinstance(given, str) and given else given or {}
    if not tool or not isinstance(arguments, dict):
        raise ValueError("the payload names no tool with its input")
    url = read_text(payload, "mcp_server_url") or read_text(payload, "url")
    imitates_own = server == OWN_NAME and not is_own_server(shlex.split(read_text(payload, "command")), url)
    return f"MCP:{server}:{tool}" + (FOREIGN_NOTE if imitates_own else ""), arguments


def write_answer(event: HookEvent, answer: HookAnswer) -> dict[str, Any]:
    """Return an answer as Cursor reads it; it denies instead of asking. An empty answer is an empty object."""
    written: dict[str, Any] = {}
    if event.moment is HookMoment.BEFORE_TOOL and answer.decision in PERMISSIONS:
        return {"permission": "deny", "user_message": answer.reason, "agent_message": answer.reason}
    if answer.context and event.moment in TOLD_MOMENTS:
        written["additional_context"] = answer.context
    return written


def wanted_hooks(command: str, *, seconds: float, every_tool: bool = False) -> dict[str, Settings]:
    hook = {"command": command, "timeout": agent_timeout(seconds)}
    judging = {**hook, "failClosed": True}
    others = OTHER_TOOLS if every_tool else EDITED_TOOLS
    return {
        "sessionStart": hook,
        SHELL_EVENT: judging,
        MCP_EVENT: judging,
        "preToolUse": {**judging, "matcher": others},
        "postToolUse": {**hook, "matcher": others},
        "postToolUseFailure": {**hook, "matcher": others},
        "afterAgentResponse": hook,
    }


CURSOR: Final = HookHost(
    read_event,
    write_answer,
    TOOLS,
    {"user": "~/.cursor/hooks.json", "project": ".cursor/hooks.json"},
    wanted_hooks,
    # With the hooks first: this order identifies a file that the installation created.
    empty_settings='{\n  "hooks": {\n  },\n  "version": 1\n}\n',
    tells_before_tool=False,
    shows_notices=False,
    project_folder_variable="CURSOR_PROJECT_DIR",
)
