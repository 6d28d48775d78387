"""The `cstp compact` command: summaries of old decisions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from cstp_grpc.cli import command_decorators as shared
from cstp_grpc.cli.rpc_commands import call_rpc
from cstp_grpc.common.counted_nouns import count_noun
from cstp_grpc.common.lazy_imports import LazyModule

if TYPE_CHECKING:
    from cstp_grpc.cli import decision_output
    from cstp_grpc.cli.console import Console
    from cstp_grpc.cli.output import Output
    from cstp_grpc.client import CstpClient
    from cstp_grpc.gen.cstp.v1 import journal_pb2
else:
    decision_output = LazyModule("cstp_grpc.cli.decision_output")


@click.command(name="compact")
@shared.filter_options
@click.option(
    "--min-decisions",
    type=click.IntRange(2, 50),
    default=5,
    show_default=True,
    help="Minimum number of decisions of a topic that no summary cites yet.",
)
@click.option("--dry-run", is_flag=True, help="Show the summaries without writing them.")
@shared.with_client
def compact_command(client: CstpClient, out: Output, dry_run: bool, **fields: Any) -> None:
    """Summarize your old decisions by topic. Session contexts then show the summaries in their place.

    These are decisions with an outcome, without --before those of more than 90 days ago. They stay in the journal.

    \b
    Examples:
      cstp compact --dry-run
      cstp compact --category database --before 180d --json
    """

    def show(console: Console, answer: journal_pb2.CompactDecisionsResponse) -> None:
        for item in answer.summaries:
            decision_output.print_decision(console, item)
            console.print()
        written = f"{'Would write' if dry_run else 'Wrote'} {count_noun(len(answer.summaries), 'summary', 'summaries')}"
        console.print(f"{written} of {count_noun(answer.added, 'further decision')}.")
        if answer.truncated:
            console.print("There is more: repeat the command, or narrow it with filters.")

    out.answer(call_rpc(client, "compact_decisions", **fields, dry_run=dry_run), show)
