"""The command `cstp session-context`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from cstp_grpc.cli.command_decorators import with_client

if TYPE_CHECKING:
    from cstp_grpc.cli.output import Output
    from cstp_grpc.client import CstpClient


@click.command()
@click.option("--task", metavar="TEXT", help="What you are going to do; intents of others that resemble it come first.")
@click.option("--project", metavar="NAME", help="Project of the paths. [default: the server's only one]")
@click.option("--path", "paths", metavar="P", multiple=True, help="A file or folder that you are going to work on.")
@click.option(
    "--budget", type=click.IntRange(200, 100_000), metavar="N", help="Maximum size in tokens. [default: 2000]"
)
@with_client
def session_context_command(
    client: CstpClient, out: Output, task: str | None, project: str | None, paths: tuple[str, ...], budget: int | None
) -> None:
    """Print what a new session should know. That is your past decisions, the rules, and the intents of others, as
    Markdown.

    It has your decisions that are due for review, that failed and that are recent, lessons by category, rules and the
    facts that they read, what your confidence has meant, intents of others, and what governs the paths: the most useful
    first, as far as the budget reaches. A token counts as four characters.

    \b
    Examples:
      cstp session-context
      cstp session-context --project shop --path src/api --budget 1000
      cstp session-context --task "Move the sessions to Redis" --json
    """
    answer = client.get_session_context(task=task, project=project, paths=paths, max_tokens=budget)
    if out.json_wanted:
        out.message(answer)
    else:
        # Unchanged for the agents that read it: no wrapping, and no replaced characters but on a terminal.
        out.write_verbatim(answer.markdown)
