"""The commands about guardrails; those that need no server work on rulebooks."""

from __future__ import annotations

import click

from cstp_grpc.cli import rule_inspection as rules
from cstp_grpc.cli import rulebook_authoring as authoring
from cstp_grpc.cli.rulebook_replay import replay_command


@click.group()
def guardrails_group() -> None:
    """Write, test and inspect rulebooks."""


for command in (
    *(rules.list_command, rules.inputs_command, rules.rulebook_command, rules.explain_command),
    *(authoring.new_command, authoring.validate_command, authoring.test_command, authoring.diff_command),
    *(replay_command, authoring.convert_command, authoring.schema_command),
):
    guardrails_group.add_command(command)
