"""The hooks of Claude Code: its payloads, and its answers.

By https://code.claude.com/docs/en/hooks as of Claude Code 2.1.302 (October 2026). `onFailure` is known since 2.1.295:
without it, a hook that cannot start or takes too long lets the tool call through.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from cstp_grpc.hooks.model import HookAnswer, HookDecision, HookEvent, HookMoment

MOMENTS: Final[Mapping[str, HookMoment]] = {
    "SessionStart": HookMoment.SESSION_STARTED,
    "UserPromptSubmit": HookMoment.PROMPT_SUBMITTED,
    "PreToolUse": HookMoment.BEFORE_TOOL,
    "PostToolUse": HookMoment.AFTER_TOOL,
    "PostToolUseFailure": HookMoment.AFTER_TOOL,
    "Stop": HookMoment.TURN_ENDED,
}
EVENT_NAMES: Final[Mapping[HookMoment, str]] = {
    HookMoment.SESSION_STARTED: "SessionStart",
    HookMoment.PROMPT_SUBMITTED: "UserPromptSubmit",
    HookMoment.BEFORE_TOOL: "PreToolUse",
}
"""The events whose answers may tell the model something, by their names."""
PERMISSIONS: Final = {HookDecision.ASK: "ask", HookDecision.DENY: "deny"}

PROJECT_FOLDER_VARIABLE: Final = "CLAUDE_PROJECT_DIR"
"""The environment variable with the folder in which the session was started; `cwd` of a payload may change."""

CHECKED_TOOLS: Final = "^(Bash|PowerShell|Edit|MultiEdit|Write|NotebookEdit|mcp__.*)$"
"""The tools of DEFAULT_TOOLS. Anchored, for Claude Code searches for patterns: TodoWrite has Write in it."""
ANNOUNCED_TOOLS: Final = "Edit|MultiEdit|Write|NotebookEdit"
SPARE_SECONDS: Final = 7
"""Seconds that Claude Code waits longer than the hook takes at most. Chosen: for processes to start if many do."""


def read_event(payload: Mapping[str, Any], project_folder: str | None = None) -> HookEvent:
    """Return the event of a payload. Raises ValueError for what is no payload of a hook."""
    name = read_text(payload, "hook_event_name")
    moment = MOMENTS.get(name, HookMoment.OTHER)
    arguments = payload.get("tool_input", {})
    if moment in (HookMoment.BEFORE_TOOL, HookMoment.AFTER_TOOL) and not (
        isinstance(arguments, dict) and payload.get("tool_name")
    ):
        raise ValueError("the payload names no tool with its input")
    return HookEvent(
        moment,
        tool=read_text(payload, "tool_name"),
        arguments=arguments if isinstance(arguments, dict) else {},
        call_id=read_text(payload, "tool_use_id"),
        failed=name == "PostToolUseFailure",
        prompt=read_text(payload, "prompt"),
        last_message=read_text(payload, "last_assistant_message"),
        continued=payload.get("stop_hook_active") is True,
        folder=project_folder or read_text(payload, "cwd") or "/",
    )


def read_text(payload: Mapping[str, Any], key: str) -> str:
    """Return a text of a payload, empty if it is missing. Raises ValueError for another type."""
    value = payload.get(key)
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{key} of the payload is no text")
    return value or ""


def write_answer(moment: HookMoment, answer: HookAnswer) -> dict[str, Any]:
    """Return an answer as Claude Code reads it; an empty object for an empty answer."""
    written: dict[str, Any] = {}
    if answer.notice:
        written["systemMessage"] = answer.notice
    if answer.keep_going:
        written |= {"decision": "block", "reason": answer.reason}
    specific: dict[str, Any] = {}
    if moment is HookMoment.BEFORE_TOOL and answer.decision in PERMISSIONS:
        specific = {"permissionDecision": PERMISSIONS[answer.decision], "permissionDecisionReason": answer.reason}
    if answer.context:
        specific["additionalContext"] = answer.context
    if specific and (name := EVENT_NAMES.get(moment)):
        written["hookSpecificOutput"] = {"hookEventName": name, **specific}
    return written


def wanted_hooks(command: str, *, seconds: float, every_tool: bool = False) -> dict[str, dict[str, Any]]:
    """Return what the settings of Claude Code need by event: a group of hooks, as they spell it.

    `seconds` is what the command takes at most. With `every_tool`, hooks run for all tools, as a table that is not the
    default one may need.
    """
    checked, announced = ("*", "*") if every_tool else (CHECKED_TOOLS, ANNOUNCED_TOOLS)
    hook = {"type": "command", "command": command, "timeout": math.ceil(seconds) + SPARE_SECONDS}
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
