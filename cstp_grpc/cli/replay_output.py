"""Output of the results of a replay for people."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC

from google.protobuf.timestamp_pb2 import Timestamp

from cstp_grpc.cli.answer_fields import enum_word
from cstp_grpc.cli.console import Console, Text, TextTable
from cstp_grpc.cli.output import to_printable
from cstp_grpc.common.counted_nouns import count_noun
from cstp_grpc.core.guardrails.model import UNDECLARED_INPUT_ID, UNKNOWN_ACTION_ID
from cstp_grpc.gen.cstp.v1 import guardrails_pb2, types_pb2

PAST = {
    "allowed": ("was allowed", "were allowed"),
    "approval_required": ("needed approval", "needed approval"),
    "blocked": ("was blocked", "were blocked"),
}
"""The verdict on an action, and on several."""
CONDITIONAL = {"allowed": "would be allowed", "approval_required": "would need approval", "blocked": "would be blocked"}
STYLES = {"allowed": "green", "approval_required": "magenta", "blocked": "red"}
MAX_DESCRIPTION = 100
"""Characters of an example's description."""


def print_report(console: Console, report: guardrails_pb2.ReplayReport) -> None:
    """Print whose verdicts would change, what cannot be known, and how often each guardrail fires."""
    if not report.recorded:
        console.print("No actions are recorded in this time.")
        return
    recorded = count_noun(report.recorded, "recorded action")
    period = f"from {instant_text(report.earliest)} to {instant_text(report.latest)}"
    console.print(to_printable(f"{recorded} {period}, by {report.rule_set_version}:"))
    for change in report.changes:
        before, after = (enum_word(guardrails_pb2.ReplayVerdict, each) for each in (change.before, change.after))
        past = PAST[before][0 if change.count == 1 else 1]
        line = f"{count_noun(change.count, 'action')} that {past} {CONDITIONAL[after]}"
        console.print(Text(line, style=STYLES[after]))
        for example in change.examples:
            console.print(Text(f"  {example_text(example)}"))
    if not report.changes:
        console.print("No verdict that can be known changes.")
    for line in unknown_lines(report):
        console.print(Text(line, style="yellow"))
    print_guardrails(console, report)


def unknown_lines(report: guardrails_pb2.ReplayReport) -> Iterator[str]:
    if report.truncated:
        yield "Earlier actions were left out."
    if report.without_content:
        yield f"{count_noun(report.without_content, 'action')} cannot be replayed: no content on record"
    if report.unknown:
        names = to_printable(", ".join(sorted(each.id for each in report.guardrails if each.unknown)))
        verdicts = count_noun(report.unknown, "verdict")
        yield f"{verdicts} cannot be known: {names} read facts that only the server knew then"


def example_text(example: guardrails_pb2.ReplayExample) -> str:
    description = to_printable(" ".join(example.description.split()))
    if len(description) > MAX_DESCRIPTION:
        description = f"{description[: MAX_DESCRIPTION - 1]}…"
    names = to_printable(", ".join(example.stopped_by or example.fired))
    return f"{instant_text(example.judged_at)}  {to_printable(example.agent)}: {description} ({names})"


def print_guardrails(console: Console, report: guardrails_pb2.ReplayReport) -> None:
    table = TextTable("fires", "newly", "no longer", "stops", "unknown", "guardrail")
    for each in report.guardrails:
        numbers = (each.fired, each.newly_fired, each.no_longer_fired, each.stopped, each.unknown)
        table.add_row(*map(str, numbers), Text(to_printable(f"{each.id} ({effect_text(each)})")))
    console.print(table)


def effect_text(each: guardrails_pb2.ReplayedGuardrail) -> str:
    if not each.severity:
        return "of a setting" if each.id in (UNDECLARED_INPUT_ID, UNKNOWN_ACTION_ID) else "not in these rules"
    dryrun = ", dry run" if each.enforcement == guardrails_pb2.ENFORCEMENT_DRYRUN else ""
    return f"{enum_word(types_pb2.Severity, each.severity)}{dryrun}"


def instant_text(instant: Timestamp) -> str:
    return f"{instant.ToDatetime(UTC):%Y-%m-%d %H:%M:%S}Z"
