"""The command `cstp pre-action`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

import click

from cstp_grpc.cli.command_decorators import (
    AnnouncementOptions,
    announcement_options,
    federated_options,
    parse_instant,
    parse_key_value,
    with_client,
)
from cstp_grpc.cli.output import to_printable
from cstp_grpc.cli.protocol import exit_by_verdict
from cstp_grpc.common.lazy_imports import LazyModule

if TYPE_CHECKING:
    from datetime import datetime

    from rich.console import Console

    from cstp_grpc.cli import decision_output
    from cstp_grpc.cli.output import Output
    from cstp_grpc.client import CstpClient
    from cstp_grpc.contract import proto_values
    from cstp_grpc.contract.calls import Json
    from cstp_grpc.gen.cstp.v1 import journal_pb2, pre_actions_pb2
else:
    decision_output = LazyModule("cstp_grpc.cli.decision_output")
    journal_pb2 = LazyModule("cstp_grpc.gen.cstp.v1.journal_pb2")
    proto_values = LazyModule("cstp_grpc.contract.proto_values")


@click.command()
@announcement_options
@click.option("--correlation-id", help="Idempotency key. [default: random]")
@click.option("--title", metavar="TEXT", help="What is decided. [default: the intent]")
@click.option("--reason", "reasons", type=parse_key_value, multiple=True, metavar="TYPE=TEXT", help="Why.")
@click.option("--tag", "tags", multiple=True, help="A word to find the decision by.")
@click.option(
    "--review-by", type=parse_instant, metavar="DATE", help="When to review it; `cstp review --due` lists it."
)
@federated_options
@with_client
def pre_action_command(
    client: CstpClient,
    out: Output,
    intent: str,
    inputs: dict[str, Json],
    title: str | None,
    reasons: tuple[tuple[str, str], ...],
    tags: tuple[str, ...],
    review_by: datetime | None,
    asked: tuple[str, ...],
    **options: Unpack[AnnouncementOptions],
) -> None:
    """Announce an intent; record it if allowed.

    Both are on record, or neither is. Exit code 0 means that it is allowed, 3 that a guardrail blocks it, 4 that a
    person must approve it first (see `cstp approvals`), 1 an error.

    \b
    Examples:
      cstp pre-action "Rebuild the orders index tonight" --confidence 0.8 --review-by 2027-01-31
      cstp pre-action "Deploy the auth service" --stakes high --title "Deploy auth 3.4 before the fix of the cache" \
          --metadata affectsProduction=true --metadata codeReviewCompleted=true --metadata ciPassing=true
    """
    decision = None
    if title is not None or reasons or tags or review_by is not None:
        decision = journal_pb2.DecisionContent(
            title=intent if title is None else title,
            reasons=[journal_pb2.Reason(type=kind, text=text) for kind, text in reasons],
            tags=tags,
            review_by=proto_values.optional_timestamp(review_by),
        )
    answer = client.pre_action(intent, metadata=inputs, decision=decision, agents=asked, **options)
    out.answer(answer, lambda console: print_pre_action(console, answer))
    exit_by_verdict(answer.feedback.guardrail_status)


def print_pre_action(console: Console, answer: pre_actions_pb2.PreActionResponse) -> None:
    decision_output.print_announce_answer(console, answer.feedback)
    if answer.HasField("decision"):
        console.print(to_printable(f"Recorded as {answer.decision.id}: {answer.decision.title}"))
    else:
        console.print("No decision was recorded.")
