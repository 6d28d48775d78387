"""The commands for auditors: the audit trail and the announced intents."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from cstp_grpc.cli.audit_export import evidence_command, export_command, tail_command, verify_evidence_command
from cstp_grpc.cli.audit_verification import checkpoints_command, public_key_command, verify_command
from cstp_grpc.cli.command_decorators import enum_choice, instant_option
from cstp_grpc.cli.rpc_commands import calls_rpc, lists_items
from cstp_grpc.cli.short_ids import APPROVAL_ID, DECISION_ID
from cstp_grpc.common.lazy_imports import LazyModule
from cstp_grpc.contract.enums import Stakes
from cstp_grpc.core.audit.model import AuditEvent
from cstp_grpc.core.audit.summary import AuditBucketSize, AuditGrouping

if TYPE_CHECKING:
    from cstp_grpc.cli import decision_output
    from cstp_grpc.cli.console import Console
    from cstp_grpc.gen.cstp.v1 import audit_pb2
else:
    decision_output = LazyModule("cstp_grpc.cli.decision_output")


class SearchByDefault(click.Group):
    """A group whose options alone are those of its command `search`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
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


@audit_group.command()
@click.option("--word", "words", multiple=True, metavar="TEXT", help="Whose action contains this; repeatable.")
@click.option("--category", help="Whose evaluated action has exactly this category.")
@click.option("--stakes", type=enum_choice(Stakes), multiple=True, help="Whose evaluated action has any of these.")
@click.option("--project", help="Whose evaluated action names exactly this project.")
@click.option("--event", type=enum_choice(AuditEvent), help="About exactly this.")
@click.option("--by", "requesting_agent", metavar="AGENT", help="Caused by exactly this agent.")
@click.option("--allowed/--blocked", default=None, help="With exactly this verdict.")
@click.option("--guardrail", "guardrail_id", metavar="ID", help="Where exactly this guardrail blocked or warned.")
@click.option("--request-id", help="Caused by exactly this request.")
@click.option("--correlation-id", help="With exactly this correlation id.")
@click.option("--decision", "decision_id", type=DECISION_ID, metavar="ID", help="About exactly this decision.")
@click.option("--approval", "approval_id", type=APPROVAL_ID, metavar="ID", help="About exactly this approval.")
@click.option("--error", metavar="REASON", help="Failed for exactly this reason, for example RATE_LIMITED.")
@instant_option("--after", "Then or later.")
@instant_option("--before", "Then or earlier.")
@lists_items("list_audit_entries")
def search_command(console: Console, answer: audit_pb2.ListAuditEntriesResponse) -> None:
    """Search the audit trail, latest first. Lists the entries that meet all conditions. Needs the permission admin.

    \b
    Examples:
      cstp audit search --blocked --after 2026-01-01
      cstp audit --event intent_announced --by emerson --json
      cstp audit --event calls_refused --error RATE_LIMITED
      cstp audit --approval apr-0f3a9b2c4d5e6f708192
      cstp audit --word deploy --category deployment --stakes high --project shop
    """
    decision_output.print_audit_entries(console, answer.entries)


@audit_group.command()
@click.option("--group-by", type=enum_choice(AuditGrouping), multiple=True, help="Count by this too; repeatable.")
@click.option("--bucket", type=enum_choice(AuditBucketSize), help="Count by hour or day, in UTC.")
@click.option("--max-groups", type=click.IntRange(1, 100), default=20, show_default=True, help="Groups of each kind.")
@instant_option("--after", "Then or later. [default: a day before the end]")
@instant_option("--before", "Then or earlier. [default: now]")
@calls_rpc("summarize_audit")
def summarize_command(console: Console, answer: audit_pb2.SummarizeAuditResponse) -> None:
    """Count the entries of a period, by verdict, time and group. Needs the permission admin or oversee.

    \b
    Examples:
      cstp audit summarize --bucket hour
      cstp audit summarize --group-by guardrail --group-by agent --after 2026-01-01 --json
    """
    decision_output.print_audit_summary(console, answer)


@click.command()
@click.option("--by", "agent", metavar="AGENT", help="Announced by exactly this agent.")
@click.option("--correlation-id", help="With exactly this correlation id.")
@click.option("--category", help="Of exactly this category.")
@click.option("--stakes", type=enum_choice(Stakes), multiple=True, help="With any of these stakes.")
@instant_option("--after", "Received then or later.")
@instant_option("--before", "Received then or earlier.")
@click.option("--closed/--open", default=None, help="Only closed ones, or only open ones.")
@lists_items("list_intents")
def intents_command(console: Console, answer: audit_pb2.ListIntentsResponse) -> None:
    """List all announced intents, latest first. Needs the permission admin, or oversee, which shows no contexts.

    \b
    Examples:
      cstp intents --by emerson --limit 10
      cstp intents --stakes high --stakes critical --after 2026-01-01
    """
    decision_output.print_intents(console, answer.intents)
