"""The command on an announced intent: close."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from cstp_grpc.cli.command_decorators import enum_choice, with_client
from cstp_grpc.enums import Outcome
from cstp_grpc.lazy_imports import LazyModule

if TYPE_CHECKING:
    from cstp_grpc.cli import decision_output
    from cstp_grpc.cli.output import Output
    from cstp_grpc.client import CstpClient
else:
    decision_output = LazyModule("cstp_grpc.cli.decision_output")


@click.group()
def intent_group() -> None:
    """Say what became of an intent that you announced."""


@intent_group.command(name="close")
@click.argument("correlation_id", metavar="ID")
@click.option("--outcome", type=enum_choice(Outcome), required=True, help="How it turned out.")
@click.option("--notes", metavar="TEXT", help="What is to be known about it; read by whoever may read the intent.")
@click.option("--decision", metavar="ID", help="The decision that came of it.")
@click.option("--revision", type=click.IntRange(min=1), help="Which revision; the latest when absent.")
@with_client
def close_command(
    client: CstpClient,
    out: Output,
    correlation_id: str,
    outcome: str,
    notes: str | None,
    decision: str | None,
    revision: int | None,
) -> None:
    """Close an intent of yours by its correlation id ID.

    \b
    Examples:
      cstp intent close rebuild-orders-index --outcome success
      cstp intent close rebuild-orders-index --outcome failure --notes "The disk was full" \\
          --decision dec-0f3a9b2c4d5e6f708192
    """
    answer = client.close_intent(correlation_id, outcome, notes=notes, decision_id=decision, revision=revision)
    out.answer(answer, lambda console: decision_output.print_closed_intent(console, answer))
