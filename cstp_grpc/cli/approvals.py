"""The commands on approvals: what agents wait for, and what people decide."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from cstp_grpc.cli.command_decorators import LIMIT, enum_choice, instant_option
from cstp_grpc.cli.rpc_commands import calls_rpc, lists_items, watches_changes
from cstp_grpc.cli.short_ids import APPROVAL_ID
from cstp_grpc.common.lazy_imports import LazyModule
from cstp_grpc.contract.caller import APPROVER
from cstp_grpc.contract.enums import ApprovalStatus

if TYPE_CHECKING:
    from cstp_grpc.cli import approval_output
    from cstp_grpc.cli.console import Console, Text
    from cstp_grpc.gen.cstp.v1 import approvals_pb2
else:
    approval_output = LazyModule("cstp_grpc.cli.approval_output")

status_option = click.option(
    "--status", type=enum_choice(ApprovalStatus), multiple=True, help="In any of these states. [default: all]"
)
agent_option = click.option("--by", "agent", metavar="AGENT", help="Requested by exactly this agent.")
comment_option = click.option("--comment", metavar="TEXT", help="Comment for the agent and the auditors.")
id_argument = click.argument("id", metavar="ID", type=APPROVAL_ID)


@click.group()
def approvals_group() -> None:
    """List, grant and deny approvals.

    An agent sees its own requests; deciding, and seeing those of others, needs the permission approve.
    """


@approvals_group.command()
@status_option
@agent_option
@lists_items("list_approvals", APPROVER)
def list_command(console: Console, answer: approvals_pb2.ListApprovalsResponse) -> None:
    """List approval requests, latest first.

    \b
    Examples:
      cstp approvals list --status pending
      cstp approvals list --by emerson --json
    """
    approval_output.print_approvals(console, answer.approvals)


@approvals_group.command()
@id_argument
@calls_rpc("get_approval", APPROVER)
def show_command(console: Console, answer: approvals_pb2.GetApprovalResponse) -> None:
    """Show an approval request. Shows everything that the agent stated about its action.

    \b
    Example:
      cstp approvals show apr-0f3a9b2c4d5e6f708192
    """
    approval_output.print_approval(console, answer.approval)


@approvals_group.command()
@id_argument
@comment_option
@instant_option(
    "--until", "Allow the action any number of times until then. [default: once]", "reusable_until", is_future=True
)
@calls_rpc("grant_approval", APPROVER)
def grant_command(console: Console, answer: approvals_pb2.GrantApprovalResponse) -> None:
    """Grant an approval. Grants it for the guardrails on which you may decide.

    \b
    Examples:
      cstp approvals grant apr-0f3a9b2c4d5e6f708192 --comment "The backup is verified"
      cstp approvals grant apr-0f3a9b2c4d5e6f708192 --until 2027-01-05T18:00:00Z
    """
    approval_output.print_decision(console, answer.approval)


@approvals_group.command()
@id_argument
@comment_option
@calls_rpc("deny_approval", APPROVER)
def deny_command(console: Console, answer: approvals_pb2.DenyApprovalResponse) -> None:
    """Deny an approval. The agent gets this answer until the request expires.

    \b
    Example:
      cstp approvals deny apr-0f3a9b2c4d5e6f708192 --comment "Not during the sale"
    """
    approval_output.print_decision(console, answer.approval)


@approvals_group.command()
@id_argument
@comment_option
@calls_rpc("revoke_approval", APPROVER)
def revoke_command(console: Console, answer: approvals_pb2.RevokeApprovalResponse) -> None:
    """Revoke a grant or a denial. A grant that is used up cannot be revoked.

    \b
    Example:
      cstp approvals revoke apr-0f3a9b2c4d5e6f708192 --comment "The maintenance is over"
    """
    approval_output.print_decision(console, answer.approval)


@approvals_group.command()
@status_option
@agent_option
@click.option("--after", metavar="TOKEN", help="Continue after this resume token. [default: now]")
@click.option("--limit", type=LIMIT, metavar="N", help="Stop after this number of changes.")
@watches_changes("watch_approvals", "approval", role=APPROVER)
def watch_command(change: approvals_pb2.WatchApprovalsResponse) -> Text:
    """Watch approval requests until Ctrl-C.

    If the server goes away, the watch waits and continues. With --json, each is an object on a line, with a token to
    resume the watch.

    \b
    Examples:
      cstp approvals watch --status pending
      cstp approvals watch --json
    """
    return approval_output.approval_line(change.approval)
