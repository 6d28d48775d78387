"""The commands about guardrails; those that need no server work on rulebooks."""

from __future__ import annotations

import click

from cstp_grpc.cli.rule_inspection import explain_command, inputs_command, list_command, rulebook_command
from cstp_grpc.cli.rulebook_authoring import (
    convert_command,
    diff_command,
    new_command,
    schema_command,
    test_command,
    validate_command,
)
from cstp_grpc.cli.rulebook_replay import replay_command


@click.group()
def guardrails_group() -> None:
    """Write, test and inspect rulebooks."""


for command in (
    list_command,
    inputs_command,
    rulebook_command,
    explain_command,
    new_command,
    validate_command,
    test_command,
    diff_command,
    replay_command,
    convert_command,
    schema_command,
):
    guardrails_group.add_command(command)
