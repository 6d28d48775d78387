"""The coding agents whose hooks are answered."""

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
"""The constants with the hosts, each in the module of the same name, by their names on the command line."""
HOSTS: Final = tuple(HOST_NAMES)


def load_host(name: str) -> HookHost:
    """Return the host of a name. Raises KeyError for another name."""
    constant = HOST_NAMES[name]
    # Imported here: a hook waits for what is imported, and answers one agent.
    host: HookHost = getattr(importlib.import_module(f"cstp_grpc.agents.hooks.{constant.lower()}"), constant)
    return host
