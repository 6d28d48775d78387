"""Output of the results of a replay, for people and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from rich.console import Console
from rich.text import Text

from cstp_grpc.cli.console import TextTable
from cstp_grpc.cli.output import json_members, to_printable
from cstp_grpc.common.counted_nouns import count_noun
from cstp_grpc.contract.enums import Enforcement
from cstp_grpc.core.guardrails.model import UNDECLARED_INPUT_ID, UNKNOWN_ACTION_ID
from cstp_grpc.core.guardrails.replay import GuardrailCounts, ReplayedAction, ReplaySummary, VerdictKind

PAST = {
    VerdictKind.ALLOWED: ("was allowed", "were allowed"),
    VerdictKind.APPROVAL_REQUIRED: ("needed approval", "needed approval"),
    VerdictKind.BLOCKED: ("was blocked", "were blocked"),
}
"""The verdict on an action, and on several."""
CONDITIONAL = {
    VerdictKind.ALLOWED: "would be allowed",
    VerdictKind.APPROVAL_REQUIRED: "would need approval",
    VerdictKind.BLOCKED: "would be blocked",
}
STYLES = {VerdictKind.ALLOWED: "green", VerdictKind.APPROVAL_REQUIRED: "magenta", VerdictKind.BLOCKED: "red"}
MAX_DESCRIPTION = 100
"""Characters of an example's description."""


def print_summary(console: Console, summary: ReplaySummary, version: str) -> None:
    """Print whose verdicts would change, what cannot be known, and how often each guardrail fires."""
    if not summary.recorded or summary.earliest is None or summary.latest is None:
        console.print("No actions are recorded in this time.")
        return
    recorded = count_noun(summary.recorded, "recorded action")
    console.print(f"{recorded} from {instant_text(summary.earliest)} to {instant_text(summary.latest)}, by {version}:")
    for change, count in sorted(summary.changes.items()):
        before, after = change
        past = PAST[before][0 if count == 1 else 1]
        console.print(Text(f"{count_noun(count, 'action')} that {past} {CONDITIONAL[after]}", style=STYLES[after]))
        for example in summary.examples.get(change, ()):
            console.print(Text(f"  {example_text(example)}"))
    if not summary.changes:
        console.print("No verdict that can be known changes.")
    for line in unknown_lines(summary):
        console.print(Text(line, style="yellow"))
    print_guardrails(console, summary)


def unknown_lines(summary: ReplaySummary) -> Iterator[str]:
    if summary.without_content:
        yield f"{count_noun(summary.without_content, 'action')} cannot be replayed: no content on record"
    if summary.unknown:
        names = sorted(name for name, counts in summary.counts.items() if counts.unknown)
        verdicts = count_noun(summary.unknown, "verdict")
        yield f"{verdicts} cannot be known: {', '.join(names)} read facts that only the server knew then"


def example_text(example: ReplayedAction) -> str:
    recorded = example.recorded
    description = to_printable(" ".join((recorded.description or "").split()))
    if len(description) > MAX_DESCRIPTION:
        description = f"{description[: MAX_DESCRIPTION - 1]}…"
    names = example.stopped_by or sorted(recorded.fired)
    return f"{instant_text(recorded.judged_at)}  {to_printable(recorded.agent)}: {description} ({', '.join(names)})"


def print_guardrails(console: Console, summary: ReplaySummary) -> None:
    table = TextTable("fires", "newly", "no longer", "stops", "unknown", "guardrail")
    for name, counts in summary.counts.items():
        numbers = (counts.fired, counts.newly_fired, counts.no_longer_fired, counts.stopped, counts.unknown)
        table.add_row(*map(str, numbers), Text(f"{name} ({effect_text(name, counts)})"))
    console.print(table)


def effect_text(name: str, counts: GuardrailCounts) -> str:
    if counts.severity is None:
        return "of a setting" if name in (UNDECLARED_INPUT_ID, UNKNOWN_ACTION_ID) else "not in these rules"
    dryrun = ", dry run" if counts.enforcement is Enforcement.DRYRUN else ""
    return f"{counts.severity.value}{dryrun}"


def instant_text(instant: datetime) -> str:
    return f"{instant:%Y-%m-%d %H:%M:%S}Z"


def summary_to_json(summary: ReplaySummary, version: str) -> dict[str, Any]:
    return {
        "version": version,
        **json_members(summary, "recorded", "without_content", "unknown", "newly_stopped"),
        "earliest": summary.earliest and json_instant(summary.earliest),
        "latest": summary.latest and json_instant(summary.latest),
        "recordedVersions": dict(summary.versions),
        "changes": [
            {
                "from": change[0].value,
                "to": change[1].value,
                "count": count,
                "examples": [example_to_json(example) for example in summary.examples.get(change, ())],
            }
            for change, count in sorted(summary.changes.items())
        ],
        "guardrails": [guardrail_to_json(name, counts) for name, counts in summary.counts.items()],
    }


def example_to_json(example: ReplayedAction) -> dict[str, Any]:
    recorded = example.recorded
    return {
        "entryId": recorded.entry_id,
        "requestId": recorded.request_id,
        "judgedAt": json_instant(recorded.judged_at),
        "agent": recorded.agent,
        "description": recorded.description,
        "fired": sorted(recorded.fired),
        "wouldFire": sorted(example.fired),
        "stoppedBy": list(example.stopped_by),
    }


def guardrail_to_json(name: str, counts: GuardrailCounts) -> dict[str, Any]:
    numbers = ("fired", "newly_fired", "no_longer_fired", "stopped", "unknown")
    return {"id": name, **json_members(counts, "severity", "enforcement", *numbers)}


def json_instant(instant: datetime) -> str:
    return instant.isoformat().replace("+00:00", "Z")
