"""The command that serves the Model Context Protocol."""

from __future__ import annotations

import asyncio
import importlib.util
from typing import TYPE_CHECKING, Final

import click

from cstp_grpc.cli.command_decorators import config_option, current_state, server_options
from cstp_grpc.config.environment import command_environment

if TYPE_CHECKING:
    from cstp_grpc.cli.server_choice import Endpoint, ServerChoice

MISSING_EXTRA: Final = "`cstp mcp` needs the MCP SDK, which is not installed: pip install 'cstp-grpc[mcp]'"


@click.command()
@server_options
@config_option
def mcp_command(choice: ServerChoice, timeout: float | None) -> None:
    """Serve the tools of CSTP to an agent's host over the Model Context Protocol, until standard input ends.

    \b
    Examples:
      cstp mcp
      cstp mcp --agent grpc://cstp.example.com:50051
    """
    if importlib.util.find_spec("mcp") is None:
        raise click.ClickException(MISSING_EXTRA)
    from cstp_grpc.cli.server_choice import choose_server

    state = current_state()
    state.endpoint = choose_server(choice, command_environment(), state)
    asyncio.run(serve_host(state.endpoint, timeout))


async def serve_host(endpoint: Endpoint, timeout: float | None) -> None:
    """Serve the host that started this process."""
    from cstp_grpc.mcp_server.stdio_transport import serve_stdio

    async with endpoint.connect_async(timeout) as client:
        await serve_stdio(client)
