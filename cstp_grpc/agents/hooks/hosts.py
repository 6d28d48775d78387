"""The coding agents whose hooks are answered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from cstp_grpc.agents.hooks.model import HookHost

HOSTS: Final = ("claude-code", "codex", "cursor", "gemini-cli", "copilot", "qwen-code", "opencode", "pi")
"""Their names on the command line."""


def load_host(name: str) -> HookHost:
    """Return the host of a name. Raises KeyError for another name."""
    # Imported here: a hook waits for what is imported, and answers one agent.
    match name:
        case "claude-code":
            from cstp_grpc.agents.hooks.claude_code import CLAUDE_CODE

            return CLAUDE_CODE
        case "codex":
            from cstp_grpc.agents.hooks.codex import CODEX

            return CODEX
        case "cursor":
            from cstp_grpc.agents.hooks.cursor import CURSOR

            return CURSOR
        case "gemini-cli":
            from cstp_grpc.agents.hooks.gemini_cli import GEMINI_CLI

            return GEMINI_CLI
        case "copilot":
            from cstp_grpc.agents.hooks.copilot import COPILOT

            return COPILOT
        case "qwen-code":
            from cstp_grpc.agents.hooks.qwen_code import QWEN_CODE

            return QWEN_CODE
        case "opencode":
            from cstp_grpc.agents.hooks.opencode import OPENCODE

            return OPENCODE
        case "pi":
            from cstp_grpc.agents.hooks.pi import PI

            return PI
        case _:
            raise KeyError(name)
