"""The commands for auditors: the audit trail and the announced intents."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

import click

from cstp_grpc.cli.audit_export import evidence_command, export_command, tail_command, verify_evidence_command
from cstp_grpc.cli.audit_verification import checkpoints_command, public_key_command, verify_command
from cstp_grpc.cli.command_decorators import LIMIT, enum_choice, parse_instant, with_client
from cstp_grpc.common.lazy_imports import LazyModule
from cstp_grpc.contract.enums import Stakes
from cstp_grpc.core.audit.model import AuditEvent

if TYPE_CHECKING:
    from datetime import datetime

    from cstp_grpc.cli import decision_output
    from cstp_grpc.cli.output import Output
    from cstp_grpc.client import CstpClient
    from cstp_grpc.gen.cstp.v1 import audit_pb2
else:
    decision_output = LazyModule("cstp_grpc.cli.decision_output")
    audit_pb2 = LazyModule("cstp_grpc.gen.cstp.v1.audit_pb2")


class SearchByDefault(click.Group):
    """A group whose options alone are those of its command `search`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments, with the command that is meant if none is named."""
        named = args and (args[0] in self.commands or args[0] in ctx.help_option_names or not args[0].startswith("-"))
        return super().parse_args(ctx, args if named else ["search", *args])


@click.group(cls=SearchByDefault)
def audit_group() -> None:
    """Search, verify and export the audit trail.

    Without a command it is searched: `cstp audit --blocked` is `cstp audit search --blocked`.
    """


for command in (
    *(tail_command, export_command, evidence_command, verify_evidence_command),
    *(verify_command, checkpoints_command, public_key_command),
):
    audit_group.add_command(command)


@audit_group.command(name="search")
@click.option("--event", type=enum_choice(AuditEvent), help="About exactly this.")
@click.option("--by", "requesting_agent", metavar="AGENT", help="Caused by exactly this agent.")
@click.option("--allowed/--blocked", default=None, help="With exactly this verdict.")
@click.option("--guardrail", "guardrail_id", metavar="ID", help="Where exactly this guardrail blocked or warned.")
@click.option("--request-id", help="Caused by exactly this request.")
@click.option("--correlation-id", help="With exactly this correlation id.")
@click.option("--decision", "decision_id", metavar="ID", help="About exactly this decision.")
@click.option("--approval", "approval_id", metavar="ID", help="About exactly this approval.")
@click.option("--error", metavar="REASON", help="Failed for exactly this reason, for example RATE_LIMITED.")
@click.option("--after", type=parse_instant, metavar="DATE", help="Then or later.")
@click.option("--before", type=parse_instant, metavar="DATE", help="Then or earlier.")
@click.option("--limit", type=LIMIT, default=50, show_default=True, help="Maximum number of results.")
@with_client
def search_command(
    client: CstpClient,
    out: Output,
    event: str | None,
    requesting_agent: str | None,
    allowed: bool | None,
    guardrail_id: str | None,
    request_id: str | None,
    correlation_id: str | None,
    decision_id: str | None,
    approval_id: str | None,
    error: str | None,
    after: datetime | None,
    before: datetime | None,
    limit: int,
) -> None:
    """Search the audit trail, latest first. Lists the entries that meet all conditions. Needs the permission admin.

    \b
    Examples:
      cstp audit search --blocked --after 2026-01-01
      cstp audit --event intent_announced --by emerson --json
      cstp audit --event calls_refused --error RATE_LIMITED
      cstp audit --approval apr-0f3a9b2c4d5e6f708192
    """
    entries = client.list_audit_entries(
        event=event,
        requesting_agent=requesting_agent,
        allowed=allowed,
        guardrail_id=guardrail_id,
        request_id=request_id,
        correlation_id=correlation_id,
        decision_id=decision_id,
        approval_id=approval_id,
        error=error,
        after=after,
        before=before,
        # No more than is wanted, and no more than the contract gives in a page; `islice` stops the paging.
        page_size=min(limit, 1000),
    )
    found = list(islice(entries, limit))
    answer = audit_pb2.ListAuditEntriesResponse(entries=found)
    out.answer(answer, lambda console: decision_output.print_audit_entries(console, found))


@click.command()
@click.option("--by", "announced_by", metavar="AGENT", help="Announced by exactly this agent.")
@click.option("--correlation-id", help="With exactly this correlation id.")
@click.option("--category", help="Of exactly this category.")
@click.option("--stakes", type=enum_choice(Stakes), multiple=True, help="With any of these stakes.")
@click.option("--after", type=parse_instant, metavar="DATE", help="Received then or later.")
@click.option("--before", type=parse_instant, metavar="DATE", help="Received then or earlier.")
@click.option("--closed/--open", default=None, help="Only those that were closed, or were not.")
@click.option("--limit", type=LIMIT, default=50, show_default=True, help="Maximum number of results.")
@with_client
def intents_command(
    client: CstpClient,
    out: Output,
    announced_by: str | None,
    correlation_id: str | None,
    category: str | None,
    stakes: tuple[str, ...],
    after: datetime | None,
    before: datetime | None,
    closed: bool | None,
    limit: int,
) -> None:
    """List all announced intents, latest first. Needs the permission admin.

    \b
    Examples:
      cstp intents --by emerson --limit 10
      cstp intents --stakes high --stakes critical --after 2026-01-01
    """
    records = client.list_intents(
        agent=announced_by,
        correlation_id=correlation_id,
        category=category,
        stakes=stakes,
        after=after,
        before=before,
        closed=closed,
        page_size=min(limit, 1000),
    )
    found = list(islice(records, limit))
    answer = audit_pb2.ListIntentsResponse(intents=found)
    out.answer(answer, lambda console: decision_output.print_intents(console, found))
