"""The hooks of Codex: its payloads, and its answers.

Source: https://developers.openai.com/codex/hooks and the schemas and tests in openai/codex (codex-rs/hooks), of
October 2026. Codex checks answers strictly: unknown members, and `ask`, make the hook fail, and the call goes on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from cstp_grpc.agents.hooks import claude_format
from cstp_grpc.agents.hooks.model import HookAnswer, HookDecision, HookEvent, HookHost, Settings
from cstp_grpc.agents.hooks.tool_rules import command_rules, editing_rules, other_rules, own_mcp_rules

MOMENTS: Final = claude_format.moments_without("PostToolUseFailure")
PATCH_TOOL: Final = "apply_patch"
TOOLS: Final[Mapping[str, Any]] = {
    "tools": [
        # Codex reports the commands of all shell tools as commands of Bash.
        *command_rules("Bash"),
        *editing_rules("Edit {files}", "files", PATCH_TOOL),
        *own_mcp_rules("mcp__cstp__{}"),
        *other_rules("mcp__*"),
    ]
}
CHECKED_TOOLS: Final = "^(Bash|apply_patch|mcp__.*)$"


def read_event(payload: Mapping[str, Any], project_folder: str | None = None) -> HookEvent:
    """Return the event of a payload. Raises ValueError for an invalid payload."""
    event = claude_format.read_payload(payload, project_folder, moments=MOMENTS)
    if event.tool != PATCH_TOOL:
        return event
    # The patch itself is the argument `command`.
    files = claude_format.find_patched_files(
        claude_format.read_text(event.arguments, "command"), claude_format.read_text(payload, "cwd") or "/"
    )
    return event._replace(arguments={**event.arguments, "files": files})


def write_answer(event: HookEvent, answer: HookAnswer) -> dict[str, Any]:
    """Return an answer as Codex reads it; it denies instead of asking."""
    if answer.decision is HookDecision.ASK:
        answer = answer._replace(decision=HookDecision.DENY)
    return claude_format.write_nested_answer(event, answer)


def wanted_hooks(command: str, *, seconds: float, every_tool: bool = False) -> dict[str, Settings]:
    hook = {"type": "command", "command": command, "timeout": claude_format.agent_timeout(seconds)}
    judging = {**hook, "command": f"{command} {claude_format.BLOCKING_EXIT}"}
    matchers = ("*", "*") if every_tool else (CHECKED_TOOLS, f"^{PATCH_TOOL}$")
    return claude_format.group_hooks(MOMENTS, hook, judging=judging, closing=hook, matchers=matchers)


CODEX: Final = HookHost(
    read_event,
    write_answer,
    TOOLS,
    {"user": "~/.codex/hooks.json", "project": ".codex/hooks.json"},
    wanted_hooks,
    installation_note="codex ignores the hook until you trust it: type /hooks in codex",
)
