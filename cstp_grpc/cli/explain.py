"""The `cstp explain` command: why a search lists decisions, or leaves them out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from cstp_grpc.cli import command_decorators as shared
from cstp_grpc.cli.answer_fields import entry_text, enum_word
from cstp_grpc.cli.console import TextTable
from cstp_grpc.cli.rpc_commands import calls_rpc
from cstp_grpc.cli.short_ids import DECISION_ID
from cstp_grpc.gen.cstp.v1 import journal_pb2

if TYPE_CHECKING:
    from rich.console import Console


@click.command(name="explain")
@click.argument("query", metavar="TEXT")
@click.option("--expect", "expected", type=DECISION_ID, multiple=True, metavar="ID", help="Explain it in any case.")
@shared.filter_options
@click.option("--limit", type=click.IntRange(1, 50), help="Maximum number of results. [default: 10]")
@click.option(
    "--min-score", type=shared.CONFIDENCE, help="Minimum score, 0 to 1. [default: as the server is configured]"
)
@calls_rpc("explain_search")
def explain_command(console: Console, answer: journal_pb2.ExplainSearchResponse) -> None:
    """Explain why a search finds decisions. With --expect, also why it leaves one out.

    Each score follows from the sum of its parts; in brackets are the value and the weight of a part.

    \b
    Examples:
      cstp explain "move sessions out of the database"
      cstp explain "cache invalidation" --outcome failure --expect dec-0f3a9b2c
    """
    if not answer.decisions:
        console.print("No matching decisions. --expect ID explains why one is not found.")
        return
    table = TextTable("place", "score", "decision")
    for item in answer.decisions:
        score = f"{item.score:.3f}" if item.HasField("score") else "-"
        table.add_row(str(item.place or "-"), score, entry_text(item.title, describe_explanation(item)))
    console.print(table)
    console.print(f"The minimum score is {answer.min_score:g}.")


def describe_explanation(item: journal_pb2.SearchExplanation) -> list[str]:
    details = [item.id]
    if not item.place:
        unmet = [field.name for field, _ in item.unmet_filters.ListFields()]
        reasons = filter(None, (", ".join(unmet), item.similar_to))
        outcome = enum_word(journal_pb2.SearchOutcome, item.outcome).replace("_", " ")
        details.append(": ".join(("not listed", outcome, *reasons)))
    for part in item.contributions:
        feature = enum_word(journal_pb2.ScoreFeature, part.feature).replace("_", " ")
        details.append(f"{feature} {part.amount:+.3f} ({part.value:.3f} x {part.weight:.3f})")
    return details
