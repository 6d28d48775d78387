"""The command that prints the JSON Schema of rulebooks, for editors."""

from __future__ import annotations

import click

from cstp_grpc.cli.command_decorators import with_output
from cstp_grpc.cli.output import Output


@click.command(name="schema")
@with_output
def schema_command(out: Output) -> None:
    """Print the JSON Schema of rulebooks, by which editors complete and check them.

    \b
    Examples:
      cstp guardrails schema > rulebook.schema.json
    """
    from cstp_grpc.guardrails.rulebook_format import build_rulebook_schema

    out.document(build_rulebook_schema())
