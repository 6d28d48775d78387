"""The command that runs an MCP server with its tools under guard."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cstp_grpc.cli.command_decorators import FILE, choice_option, config_option, current_state, server_options
from cstp_grpc.common.extras import require_extra
from cstp_grpc.platform.config.environment import command_environment, environment_without_settings

if TYPE_CHECKING:
    from cstp_grpc.agents.hooks.tool_rules import ToolRules
    from cstp_grpc.cli.server_choice import Endpoint, ServerChoice

logger = logging.getLogger(__name__)


@click.command(context_settings={"allow_interspersed_args": False})
@click.argument("command", nargs=-1, required=True)
@click.option("--name", metavar="NAME", help="Name of the server; rules see its tools as mcp__NAME__TOOL.")
@click.option("--project", metavar="NAME", help="Project name on the server; paths are only announced with it.")
@choice_option("--on-failure", ["deny", "allow"], "Answer to a call if the CSTP server cannot be asked.")
@choice_option(
    "--approvals",
    ["deny", "ask"],
    "Who approves: people on the server only, or (ask) the user of the host, if it can show forms.",
)
@click.option(
    "--tools", "tools_file", type=FILE, help="Table of tools. [default: check each call by its name and arguments]"
)
@server_options
@config_option
def mcp_guard_command(
    command: tuple[str, ...],
    name: str | None,
    project: str | None,
    on_failure: str,
    approvals: str,
    tools_file: Path | None,
    choice: ServerChoice,
    timeout: float | None,
) -> None:
    """Guard the tools of another MCP server. Runs the server; a call that the guardrails do not allow is not made.

    Hosts start it in place of COMMAND, the command of the server, and speak with the server through it. It ends with
    the server, with the same exit code.

    \b
    Examples:
      cstp mcp-guard -- npx -y @modelcontextprotocol/server-filesystem .
      cstp mcp-guard --name shop --tools tools.yaml -- python shop_server.py
    """
    require_extra("mcp")
    from cstp_grpc.cli.server_choice import choose_server

    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    state = current_state()
    state.endpoint = choose_server(choice, command_environment(), state)
    options: dict[str, Any] = {
        "rules": read_rules_file(tools_file),
        "on_failure": "allow" if on_failure == "allow" else "tell",
        "approvals": "ask" if approvals == "ask" else "tell",
    }
    if project is not None:
        options["project"] = project
    try:
        code = asyncio.run(guard_server(command, state.endpoint, timeout, options, name))
    except OSError as error:
        raise click.ClickException(f"{command[0]} cannot be started: {error.strerror}") from error
    except Exception:
        # Ended below all the same: a host would wait for answers, and the server for the end of its input.
        logger.exception("The proxy failed")
        code = 1
    sys.stderr.flush()
    # The thread that reads standard input would keep this process until the next line. Everything is written.
    os._exit(code)


def read_rules_file(path: Path | None) -> ToolRules:
    """Return the table of tools of a file; without one each call is checked by its name and arguments.

    Raises ConfigError.
    """
    from cstp_grpc.agents.hooks.tool_rules import ToolRules
    from cstp_grpc.platform.config.yaml_file import parse_yaml

    return ToolRules([]) if path is None else ToolRules.parse(parse_yaml(path), f"{path}: ")


async def guard_server(
    command: tuple[str, ...], endpoint: Endpoint, timeout: float | None, options: dict[str, Any], name: str | None
) -> int:
    """Run a server for the host that started this process, and return its exit code. Raises OSError."""
    from cstp_grpc.agents.frameworks.mcp_stdio import run_guarded_server
    from cstp_grpc.agents.frameworks.tool_guard import ToolGuard

    async with endpoint.connect_async(timeout) as client:
        # The server is not given the token of its guard.
        return await run_guarded_server(
            command, ToolGuard(client, **options), environment_without_settings(), server_name=name
        )
