"""Whether an MCP server is `cstp mcp`, where the agent says how it reaches it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Final

from cstp_grpc.agents.hooks.settings_text import runs_command

OWN_NAME: Final = "cstp"
"""The name that `cstp mcp` has in the settings of agents."""
FOREIGN_NOTE: Final = " (not of cstp mcp)"
"""What is added to the name of a tool whose server only has that name."""


def is_own_server(command: Sequence[str], url: str) -> bool:
    """Return whether a server is `cstp mcp`, by the words of its command or its address.

    Without either it is: the agent does not say, and the tools are left alone by their names only. An address counts
    on this machine, where `cstp mcp --http` listens.
    """
    if command:
        # A program in the project is whatever the project makes it.
        in_project = "/" in command[0] and not command[0].startswith("/")
        return not in_project and runs_command({"command": shlex.join(command)}, ("mcp",))
    return not url or url.startswith(("http://127.0.0.1:", "http://localhost:", "http://[::1]:"))
