"""The commands that describe a server and the agents that call it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from cstp_grpc.cli.command_decorators import instant_option
from cstp_grpc.cli.rpc_commands import calls_rpc, lists_items
from cstp_grpc.common.lazy_imports import LazyModule

if TYPE_CHECKING:
    from cstp_grpc.cli import status_output
    from cstp_grpc.cli.console import Console
    from cstp_grpc.gen.cstp.v1 import status_pb2
else:
    status_output = LazyModule("cstp_grpc.cli.status_output")

MAX_PAGE = 200
"""The largest page by the contract."""


@click.command()
@click.option("--name", "agent", metavar="AGENT", help="Exactly this agent.")
@instant_option("--since", "Count audit entries since then. [default: 7 days ago]")
@lists_items("list_agents", max_page=MAX_PAGE)
def agents_command(console: Console, answer: status_pb2.ListAgentsResponse) -> None:
    """List agents with their calls. Shows the credentials, the first and the last call, and counts of the audit trail.

    Needs the permission admin. Lists the agents of your tenant.

    \b
    Examples:
      cstp agents
      cstp agents --name deployer --since 2026-11-01 --json
    """
    status_output.print_agents(console, answer.agents)


@click.command()
@calls_rpc("get_server_status")
def status_command(console: Console, answer: status_pb2.GetServerStatusResponse) -> None:
    """Show version, queues and warnings of a server. Shows its rules, database, search and processes, too.

    Needs the permission admin; `cstp health` needs none.

    \b
    Examples:
      cstp status
      cstp status --agent grpcs://cstp.example.com:50051 --json
    """
    status_output.print_status(console, answer)
