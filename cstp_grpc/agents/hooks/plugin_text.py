"""The plugins of agents whose hooks are not in their settings: they run `cstp hook` for each event."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cstp_grpc.agents.hooks import model
from cstp_grpc.agents.hooks.claude_format import agent_timeout


def plugin_host(
    file: str,
    read_event: model.ReadEvent,
    tools: Mapping[str, Any],
    settings_files: Mapping[str, str],
    *,
    unasked: Sequence[str],
    editors: Sequence[str],
) -> model.HookHost:
    """Return the host of an agent that runs the plugin in a file of this package.

    The plugin contains the tools that are not asked about, and those that edit files.
    """

    def write_plugin(words: Sequence[str], *, seconds: float, every_tool: bool = False) -> str:
        constants = {
            "COMMAND": words,
            "MILLISECONDS": agent_timeout(seconds) * 1000,
            "UNASKED": () if every_tool else unasked,
            "EDITORS": editors,
        }
        lines = "".join(f"const {name} = {json.dumps(value)};\n" for name, value in constants.items())
        process, plugin = (Path(__file__).with_name(name).read_text() for name in ("plugin_process.js", file))
        return f"{model.PLUGIN_MARK}{lines}{process}\n{plugin}"

    return model.HookHost(
        read_event,
        write_plugin_answer,
        tools,
        settings_files,
        hears_last_message=False,
        shows_notices=False,
        write_plugin=write_plugin,
    )


def write_plugin_answer(event: model.HookEvent, answer: model.HookAnswer) -> dict[str, Any]:
    """Return an answer as a plugin reads it; it denies instead of asking."""
    if event.moment is model.HookMoment.BEFORE_TOOL and answer.decision is not model.HookDecision.NONE:
        return {"decision": "deny", "reason": answer.reason}
    return {"context": answer.context} if answer.context else {}
