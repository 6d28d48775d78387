"""The hook format of Claude Code that several agents share: members of payloads, answers and groups."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from cstp_grpc.agents.hooks.model import HookAnswer, HookDecision, HookEvent, HookMoment, Settings

PERMISSIONS: Final = {HookDecision.ASK: "ask", HookDecision.DENY: "deny"}
MOMENTS: Final[Mapping[str, HookMoment]] = {
    "SessionStart": HookMoment.SESSION_STARTED,
    "UserPromptSubmit": HookMoment.PROMPT_SUBMITTED,
    "PreToolUse": HookMoment.BEFORE_TOOL,
    "PostToolUse": HookMoment.AFTER_TOOL,
    "PostToolUseFailure": HookMoment.AFTER_TOOL,
    "Stop": HookMoment.TURN_ENDED,
}
"""The events of Claude Code, by their names."""
TOLD_EVENTS: Final[Mapping[HookMoment, str]] = {
    HookMoment.SESSION_STARTED: "SessionStart",
    HookMoment.PROMPT_SUBMITTED: "UserPromptSubmit",
    HookMoment.BEFORE_TOOL: "PreToolUse",
}
"""The events whose answers may contain context for the model, by their names."""
SPARE_SECONDS: Final = 7
"""Seconds that the agent waits beyond the hook's own limit. Chosen: time to start many processes at once."""
BLOCKING_EXIT: Final = '|| { echo "CSTP: the hook failed, so that the call was not checked" >&2; exit 2; }'
"""Shell text that blocks a call if the command before it fails: agents read the exit code 2, with a text, as a denial,
and any other as a fault of the hook, after which they go on."""


def read_text(payload: Mapping[str, Any], key: str) -> str:
    """Return a text of a payload, empty if it is missing. Raises ValueError for another type."""
    value = payload.get(key)
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{key} of the payload is no text")
    return value or ""


def read_event_name(payload: Mapping[str, Any]) -> str:
    """Return the name of an event. Raises ValueError if it is missing: a tool call would otherwise be ignored."""
    if not (name := read_text(payload, "hook_event_name")):
        raise ValueError("the payload names no event")
    return name


def read_arguments(payload: Mapping[str, Any], moment: HookMoment) -> Mapping[str, Any]:
    """Return the arguments of a tool call; empty at other moments. Raises ValueError without arguments or a tool."""
    arguments = payload.get("tool_input")
    if moment in (HookMoment.BEFORE_TOOL, HookMoment.AFTER_TOOL) and not (
        isinstance(arguments, dict) and payload.get("tool_name")
    ):
        raise ValueError("the payload names no tool with its input")
    return arguments if isinstance(arguments, dict) else {}


def moments_without(*events: str) -> Mapping[str, HookMoment]:
    """Return the events of an agent that lacks some of Claude Code's."""
    return {name: moment for name, moment in MOMENTS.items() if name not in events}


def read_payload(
    payload: Mapping[str, Any], project_folder: str | None = None, *, moments: Mapping[str, HookMoment] = MOMENTS
) -> HookEvent:
    """Return the event of a payload in Claude Code's format. Raises ValueError for an invalid payload."""
    name = read_event_name(payload)
    moment = moments.get(name, HookMoment.OTHER)
    return HookEvent(
        moment,
        name,
        tool=read_text(payload, "tool_name"),
        arguments=read_arguments(payload, moment),
        call_id=read_text(payload, "tool_use_id"),
        failed=name == "PostToolUseFailure",
        prompt=read_text(payload, "prompt"),
        last_message=read_text(payload, "last_assistant_message"),
        continued=payload.get("stop_hook_active") is True,
        folder=project_folder or read_text(payload, "cwd") or "/",
    )


def derive_call_id(session: str, tool: str, arguments: Mapping[str, Any]) -> str:
    """Return an id for a tool call without one, the same before and after the call.

    Calls of a session with the same arguments share the id.
    """
    content = json.dumps([session, tool, arguments], sort_keys=True)
    import hashlib  # not at the top: most hosts name their calls

    return f"hook-{hashlib.sha256(content.encode()).hexdigest()[:32]}"


def agent_timeout(seconds: float) -> int:
    """Return the seconds that the agent waits for a hook whose limit is `seconds`."""
    return math.ceil(seconds) + SPARE_SECONDS


def write_nested_answer(event: HookEvent, answer: HookAnswer) -> dict[str, Any]:
    """Return an answer in Claude Code's format; an empty one is an empty object."""
    written: dict[str, Any] = {}
    if answer.notice:
        written["systemMessage"] = answer.notice
    if answer.keep_going:
        written |= {"decision": "block", "reason": answer.reason}
    specific: dict[str, Any] = {}
    if event.moment is HookMoment.BEFORE_TOOL and answer.decision in PERMISSIONS:
        specific = {"permissionDecision": PERMISSIONS[answer.decision], "permissionDecisionReason": answer.reason}
    if answer.context:
        specific["additionalContext"] = answer.context
    if specific and (name := TOLD_EVENTS.get(event.moment)):
        written["hookSpecificOutput"] = {"hookEventName": name, **specific}
    return written


def group_hooks(
    moments: Mapping[str, HookMoment],
    hook: Settings,
    *,
    judging: Settings,
    closing: Settings,
    matchers: tuple[str, str],
) -> dict[str, Settings]:
    """Return the groups of hooks for settings in Claude Code's format, one for each event.

    `matchers` choose the tools whose calls are checked before, by `judging`, and those whose calls are closed after.
    """
    groups: dict[HookMoment, Settings] = {
        HookMoment.BEFORE_TOOL: {"matcher": matchers[0], "hooks": [judging]},
        HookMoment.AFTER_TOOL: {"matcher": matchers[1], "hooks": [closing]},
    }
    return {event: groups.get(moment, {"hooks": [hook]}) for event, moment in moments.items()}


PATCHED_FILE: Final = re.compile(r"^[^\S\n]*\*\*\* (?:(?:Add|Update|Delete) File|Move to): (.+)$", re.MULTILINE)
"""A line of an `apply_patch` patch that names a file, by the grammar of the tool, whose parser ignores space
around such lines (codex-rs/apply-patch/src/parser.rs in openai/codex)."""


def find_patched_files(patch: str, folder: str) -> list[str]:
    """Return the files that a patch adds, changes, deletes or moves, once each; relative names start at `folder`."""
    return list(dict.fromkeys(str(Path(folder, path.rstrip())) for path in PATCHED_FILE.findall(patch)))
