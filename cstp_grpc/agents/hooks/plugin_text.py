"""The plugins of agents whose hooks are not in their settings: they run `cstp hook` for each event."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cstp_grpc.agents.hooks.claude_format import agent_timeout
from cstp_grpc.agents.hooks.model import PLUGIN_MARK, HookAnswer, HookDecision, HookEvent, HookMoment


def compose_plugin(file: str, words: Sequence[str], *, seconds: float, tools: Mapping[str, Sequence[str]]) -> str:
    """Return the plugin in a file of this package, with the words of a command and lists of tools as constants."""
    constants = {"COMMAND": words, "MILLISECONDS": agent_timeout(seconds) * 1000, **tools}
    lines = "".join(f"const {name} = {json.dumps(value)};\n" for name, value in constants.items())
    process, plugin = (Path(__file__).with_name(name).read_text() for name in ("plugin_process.js", file))
    return f"{PLUGIN_MARK}{lines}{process}\n{plugin}"


def write_plugin_answer(event: HookEvent, answer: HookAnswer) -> dict[str, Any]:
    """Return an answer as a plugin reads it, which cannot ask and denies instead."""
    if event.moment is HookMoment.BEFORE_TOOL and answer.decision is not HookDecision.NONE:
        return {"decision": "deny", "reason": answer.reason}
    return {"context": answer.context} if answer.context else {}
