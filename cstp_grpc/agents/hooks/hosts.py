"""The supported coding agents."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from cstp_grpc.agents.hooks.model import HookHost

HOST_NAMES: Final[Mapping[str, str]] = {
    "claude-code": "CLAUDE_CODE",
    "codex": "CODEX",
    "cursor": "CURSOR",
    "gemini-cli": "GEMINI_CLI",
    "copilot": "COPILOT",
    "qwen-code": "QWEN_CODE",
    "opencode": "OPENCODE",
    "pi": "PI",
}
"""The constants with the hosts, each in the module of the same name, by the host's name on the command line."""
HOSTS: Final = tuple(HOST_NAMES)


def load_host(name: str) -> HookHost:
    """Return the host with a name. Raises KeyError for an unknown name."""
    constant = HOST_NAMES[name]
    # Imported here: imports delay the hook, and it answers only one agent.
    host: HookHost = getattr(importlib.import_module(f"cstp_grpc.agents.hooks.{constant.lower()}"), constant)
    return host
