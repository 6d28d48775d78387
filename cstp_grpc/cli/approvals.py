"""The commands on approvals: what agents wait for, and what people decide."""

from __future__ import annotations

import functools
from contextlib import closing, suppress
from itertools import islice
from typing import TYPE_CHECKING

import click

from cstp_grpc.cli.command_decorators import LIMIT, enum_choice, parse_instant, with_client
from cstp_grpc.cli.output import ReconnectNotices
from cstp_grpc.common.lazy_imports import LazyModule
from cstp_grpc.contract.caller import APPROVER
from cstp_grpc.contract.enums import ApprovalStatus

if TYPE_CHECKING:
    from datetime import datetime

    from cstp_grpc.cli import approval_output
    from cstp_grpc.cli.output import Output
    from cstp_grpc.client import CstpClient
    from cstp_grpc.gen.cstp.v1 import approvals_pb2
else:
    approval_output = LazyModule("cstp_grpc.cli.approval_output")
    approvals_pb2 = LazyModule("cstp_grpc.gen.cstp.v1.approvals_pb2")

status_option = click.option(
    "--status", type=enum_choice(ApprovalStatus), multiple=True, help="In any of these states. [default: all]"
)
agent_option = click.option("--by", "requested_by", metavar="AGENT", help="Requested by exactly this agent.")
comment_option = click.option("--comment", metavar="TEXT", help="Comment for the agent and the auditors.")
id_argument = click.argument("approval_id", metavar="ID")
as_approver = functools.partial(with_client, role=APPROVER)


@click.group()
def approvals_group() -> None:
    """List, grant and deny approvals.

    An agent sees its own requests; deciding, and seeing those of others, needs the permission approve.
    """


@approvals_group.command(name="list")
@status_option
@agent_option
@click.option("--limit", type=LIMIT, default=50, show_default=True, help="Maximum number of results.")
@as_approver
def list_command(
    client: CstpClient, out: Output, status: tuple[str, ...], requested_by: str | None, limit: int
) -> None:
    """List approval requests, latest first.

    \b
    Examples:
      cstp approvals list --status pending
      cstp approvals list --by emerson --json
    """
    found = list(islice(client.list_approvals(status=status, agent=requested_by, page_size=min(limit, 1000)), limit))
    answer = approvals_pb2.ListApprovalsResponse(approvals=found)
    out.answer(answer, lambda console: approval_output.print_approvals(console, found))


@approvals_group.command(name="show")
@id_argument
@as_approver
def show_command(client: CstpClient, out: Output, approval_id: str) -> None:
    """Show an approval request. Shows everything that the agent stated about its action.

    \b
    Example:
      cstp approvals show apr-0f3a9b2c4d5e6f708192
    """
    found = client.get_approval(approval_id)
    answer = approvals_pb2.GetApprovalResponse(approval=found)
    out.answer(answer, lambda console: approval_output.print_approval(console, found))


@approvals_group.command(name="grant")
@id_argument
@comment_option
@click.option(
    "--until",
    type=parse_instant,
    metavar="DATE",
    help="Allow the action any number of times until then. [default: once]",
)
@as_approver
def grant_command(
    client: CstpClient, out: Output, approval_id: str, comment: str | None, until: datetime | None
) -> None:
    """Grant an approval. Grants it for the guardrails on which you may decide.

    \b
    Examples:
      cstp approvals grant apr-0f3a9b2c4d5e6f708192 --comment "The backup is verified"
      cstp approvals grant apr-0f3a9b2c4d5e6f708192 --until 2027-01-05T18:00:00Z
    """
    granted = client.grant_approval(approval_id, comment=comment, reusable_until=until)
    answer = approvals_pb2.GrantApprovalResponse(approval=granted)
    out.answer(answer, lambda console: approval_output.print_decision(console, granted))


@approvals_group.command(name="deny")
@id_argument
@comment_option
@as_approver
def deny_command(client: CstpClient, out: Output, approval_id: str, comment: str | None) -> None:
    """Deny an approval. The agent is told so until the request expires.

    \b
    Example:
      cstp approvals deny apr-0f3a9b2c4d5e6f708192 --comment "Not during the sale"
    """
    denied = client.deny_approval(approval_id, comment=comment)
    answer = approvals_pb2.DenyApprovalResponse(approval=denied)
    out.answer(answer, lambda console: approval_output.print_decision(console, denied))


@approvals_group.command(name="revoke")
@id_argument
@comment_option
@as_approver
def revoke_command(client: CstpClient, out: Output, approval_id: str, comment: str | None) -> None:
    """Revoke a grant or a denial. A grant that is used up cannot be revoked.

    \b
    Example:
      cstp approvals revoke apr-0f3a9b2c4d5e6f708192 --comment "The maintenance is over"
    """
    revoked = client.revoke_approval(approval_id, comment=comment)
    answer = approvals_pb2.RevokeApprovalResponse(approval=revoked)
    out.answer(answer, lambda console: approval_output.print_decision(console, revoked))


@approvals_group.command(name="watch")
@status_option
@agent_option
@click.option("--after", metavar="TOKEN", help="Continue after this resume token. [default: now]")
@click.option("--limit", type=LIMIT, metavar="N", help="End after so many changes.")
@as_approver
def watch_command(
    client: CstpClient,
    out: Output,
    status: tuple[str, ...],
    requested_by: str | None,
    after: str | None,
    limit: int | None,
) -> None:
    """Watch approval requests until Ctrl-C.

    Where the server goes away, it waits for it and goes on. With --json, each is an object on a line, with the token
    from which another watch goes on.

    \b
    Examples:
      cstp approvals watch --status pending
      cstp approvals watch --json
    """
    # One call first: a wrong address or token must fail at once, while the watch below retries until it is stopped.
    client.get_access()
    interruptions = ReconnectNotices(out)
    answers = client.watch_approvals(status=status, agent=requested_by, after=after, on_failure=interruptions.report)
    # Ctrl-C is the regular end of a watch.
    with suppress(KeyboardInterrupt), closing(answers):
        for answer in islice((each for each in answers if each.HasField("approval")), limit):
            interruptions.reset()
            if out.json_wanted:
                out.json_line(answer)
            else:
                out.line(approval_output.approval_line(answer.approval))
