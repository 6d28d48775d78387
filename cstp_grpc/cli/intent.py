"""The commands on announced intents: close and watch."""

from __future__ import annotations

from contextlib import closing, suppress
from itertools import islice
from typing import TYPE_CHECKING

import click

from cstp_grpc.cli.command_decorators import LIMIT, enum_choice, with_client
from cstp_grpc.cli.reconnect_notices import ReconnectNotices
from cstp_grpc.enums import Outcome, Stakes
from cstp_grpc.lazy_imports import LazyModule

if TYPE_CHECKING:
    from cstp_grpc.cli import decision_output
    from cstp_grpc.cli.output import Output
    from cstp_grpc.client import CstpClient
else:
    decision_output = LazyModule("cstp_grpc.cli.decision_output")


@click.group()
def intent_group() -> None:
    """Say what became of an intent that you announced, and hear of those that are announced."""


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


@intent_group.command(name="watch")
@click.option("--by", "announced_by", metavar="AGENT", help="Announced by exactly this agent.")
@click.option("--category", help="Exactly this category.")
@click.option("--stakes", type=enum_choice(Stakes), multiple=True, help="Any of these stakes.")
@click.option("--project", help="Exactly this project.")
@click.option("--after", metavar="TOKEN", help="From this resume token on; from now on when absent.")
@click.option("--limit", type=LIMIT, metavar="N", help="End after so many intents.")
@with_client
def watch_command(
    client: CstpClient,
    out: Output,
    announced_by: str | None,
    category: str | None,
    stakes: tuple[str, ...],
    project: str | None,
    after: str | None,
    limit: int | None,
) -> None:
    """Print your intents and those that others share as they are announced, until Ctrl-C.

    Where the server goes away, it waits for it and goes on. With --json, each is an object on a line, with the token
    from which another watch goes on; what was announced in the 30 seconds before may be printed again.

    \b
    Examples:
      cstp intent watch --stakes high --stakes critical
      cstp intent watch --project shop --json
    """
    # One call first: a wrong address or token must fail at once, while the watch below retries until it is stopped.
    client.get_access()
    interruptions = ReconnectNotices(out)
    answers = client.watch_intents(
        agent=announced_by,
        category=category,
        stakes=stakes,
        project=project,
        after=after,
        on_failure=interruptions.report,
    )
    # Ctrl-C is the regular end of a watch.
    with suppress(KeyboardInterrupt), closing(answers):
        for answer in islice((each for each in answers if each.HasField("intent")), limit):
            interruptions.reset()
            if out.json_wanted:
                out.json_line(answer)
            else:
                out.line(decision_output.intent_line(answer.intent))
