"""The `cstp ready` command: what the caller should look after."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from cstp_grpc.cli.answer_fields import enum_word
from cstp_grpc.cli.command_decorators import enum_choice
from cstp_grpc.cli.console import TextTable
from cstp_grpc.cli.rpc_commands import calls_rpc
from cstp_grpc.contract.enums import ReadyReason
from cstp_grpc.gen.cstp.v1 import session_context_pb2

if TYPE_CHECKING:
    from rich.console import Console


@click.command(name="ready")
@click.option("--reason", "reasons", type=enum_choice(ReadyReason), multiple=True, help="Only these. [default: all]")
@click.option("--project", metavar="NAME", help="Only decisions and intents of exactly this project.")
@click.option("--limit", type=click.IntRange(1, 100), default=20, show_default=True, help="Maximum number of items.")
@calls_rpc("get_ready_queue")
def ready_command(console: Console, answer: session_context_pb2.GetReadyQueueResponse) -> None:
    """List reviews, intents and drift to look after. Also old decisions without an outcome.

    \b
    Examples:
      cstp ready
      cstp ready --reason overdue_review --project shop --json
    """
    if not answer.items:
        console.print("There is nothing to look after.")
        return
    table = TextTable("reason", "since", "id", "what")
    for item in answer.items:
        reason = enum_word(session_context_pb2.ReadyReason, item.reason).replace("_", " ")
        since = item.since.ToDatetime().strftime("%Y-%m-%d")
        table.add_row(reason, since, item.decision_id or item.correlation_id, item.title)
    console.print(table)
    if answer.more:
        console.print("There are more; --limit shows up to 100.")
