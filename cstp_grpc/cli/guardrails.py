"""The commands about guardrails; those that need no server work on rulebooks."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import click
from rich.text import Text

from cstp_grpc.cli.command_decorators import config_option, with_output
from cstp_grpc.cli.console import TextTable
from cstp_grpc.cli.decision_output import entry_text
from cstp_grpc.cli.output import Output
from cstp_grpc.cli.rulebook_authoring import convert_command, diff_command, new_command, test_command, validate_command
from cstp_grpc.cli.rulebook_loading import RULES_PATH, open_rules
from cstp_grpc.cli.rulebook_replay import replay_command
from cstp_grpc.enums import Enforcement, Severity
from cstp_grpc.guardrails.model import Guardrail, RuleSet

SEVERITY_STYLES = {Severity.BLOCK: "red", Severity.APPROVE: "magenta", Severity.WARN: "yellow"}


@click.group()
def guardrails_group() -> None:
    """Look at rulebooks, write and test them."""


for command in (new_command, validate_command, test_command, diff_command, replay_command, convert_command):
    guardrails_group.add_command(command)


@guardrails_group.command(name="list")
@click.argument("path", type=RULES_PATH, required=False)
@config_option
@with_output
def list_command(out: Output, path: Path | None) -> None:
    """List the guardrails in the rulebook or folder at PATH; when absent, in the configured one.

    \b
    Examples:
      cstp guardrails list
      cstp guardrails list guardrails/ --json
    """
    rules = open_rules(path)
    if out.json_wanted:
        out.document({"version": rules.version, "guardrails": guardrails_to_json(rules)})
        return
    table = TextTable()
    for rulebook in rules.rulebooks:
        for rule in rulebook.guardrails:
            details = [f"{rulebook.file}:{rule.line}", *rule_notes(rule)]
            severity = Text(rule.severity, style=SEVERITY_STYLES[rule.severity])
            table.add_row(severity, entry_text(f"{rule.id}: {rule.name}", details))
    out.show(lambda console: console.print(table))
    out.line(f"{len(rules.guardrails)} guardrails, version {rules.version}")


def rule_notes(rule: Guardrail) -> Iterator[str]:
    """Yield what keeps a guardrail from being enforced now or later."""
    if rule.enforcement is not Enforcement.ENFORCE:
        yield rule.enforcement.value
    if rule.expires is not None:
        yield f"{'expired' if rule.expires <= datetime.now(UTC) else 'expires'} {rule.expires:%Y-%m-%d %H:%M} UTC"


def guardrails_to_json(rules: RuleSet) -> list[dict[str, object]]:
    """Return the guardrails for --json."""
    return [
        {
            "id": rule.id,
            "name": rule.name,
            "severity": rule.severity.value,
            "enforcement": rule.enforcement.value,
            "expires": rule.expires and rule.expires.isoformat().replace("+00:00", "Z"),
            "owner": rule.owner or rulebook.owner,
            "tags": list(rule.tags),
            "message": rule.message,
            "suggestion": rule.suggestion,
            "description": rule.description,
            "rulebook": rulebook.name,
            "file": rulebook.file,
            "line": rule.line,
        }
        for rulebook in rules.rulebooks
        for rule in rulebook.guardrails
    ]
