"""Recognises `cstp mcp` among MCP servers, if the agent states the server's command or address."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Final

from cstp_grpc.agents.hooks.settings_text import runs_command

OWN_NAME: Final = "cstp"
"""The name of `cstp mcp` in the settings of agents."""
FOREIGN_NOTE: Final = " (not of cstp mcp)"
"""The suffix for a tool of another server that is named like `cstp mcp`."""


def is_own_server(command: Sequence[str], url: str) -> bool:
    """Return whether a server is `cstp mcp`, by the words of its command or its address.

    Without both, it counts as `cstp mcp`: the agent does not state them, and its tools are recognised by their names
    only. An address must be on this machine, where `cstp mcp --http` listens.
    """
    if command:
        # A program in the project cannot be trusted: the project can replace it.
        in_project = "/" in command[0] and not command[0].startswith("/")
        return not in_project and runs_command({"command": shlex.join(command)}, ("mcp",))
    return not url or url.startswith(("http://127.0.0.1:", "http://localhost:", "http://[::1]:"))
