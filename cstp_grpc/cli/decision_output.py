"""Output of decisions, intents and audit entries for people."""

from __future__ import annotations

from collections.abc import Sequence

from cstp_grpc.cli.answer_fields import (
    OUTCOME_STYLES,
    Rows,
    entry_text,
    enum_word,
    field_table,
    field_texts,
    format_date,
    format_instant,
    print_listing,
    revision_text,
    rows_of,
    shorten_line,
)
from cstp_grpc.cli.console import Console, Text, TextTable
from cstp_grpc.cli.output import to_printable
from cstp_grpc.common.counted_nouns import count_noun
from cstp_grpc.gen.cstp.v1 import audit_pb2, intents_pb2, journal_pb2, types_pb2

MAX_PATHS = 3
"""Paths of an intent that a listing names at most."""


def outcome_text(outcome: types_pb2.Outcome.ValueType) -> Text:
    name = enum_word(types_pb2.Outcome, outcome)
    return Text(name, style=OUTCOME_STYLES.get(name, ""))


def outcome_or_status_text(item: journal_pb2.Decision) -> Text:
    return outcome_text(item.outcome) if item.outcome else Text(enum_word(types_pb2.DecisionStatus, item.status))


def closing_text(item: audit_pb2.IntentRecord) -> Text:
    return outcome_text(item.closing.outcome) if item.HasField("closing") else Text("open")


def print_closed_intent(console: Console, answer: intents_pb2.CloseIntentResponse) -> None:
    outcome = enum_word(types_pb2.Outcome, answer.closing.outcome)
    parts = [f"{answer.correlation_id} is closed: {outcome}", revision_text(answer.revision)]
    console.print(to_printable(", ".join(filter(None, parts))))


def print_decisions(console: Console, found: Sequence[journal_pb2.Decision]) -> None:
    def row(item: journal_pb2.Decision) -> tuple[str | Text, ...]:
        entry = entry_text(item.title, field_texts(item, "{category}", "{project}", "{agent}", "{id}"))
        return format_date(item.date), outcome_or_status_text(item), entry

    print_listing(console, found, row, "No matching decisions.")


def print_decision(console: Console, item: journal_pb2.Decision) -> None:
    console.print(Text(to_printable(item.title), style="bold"))
    console.print(field_table(rows_of(item, DECISION_ROWS), indent=""))


def reasons_text(item: journal_pb2.Decision) -> str:
    strengths = (f" ({reason.strength:g})" if reason.HasField("strength") else "" for reason in item.reasons)
    return "\n".join(
        f"{reason.type}{strength}: {reason.text}".rstrip(": ")
        for reason, strength in zip(item.reasons, strengths, strict=True)
    )


def review_line(item: journal_pb2.DecisionReview) -> str:
    parts = [format_date(item.reviewed_date), enum_word(types_pb2.Outcome, item.outcome)]
    if item.HasField("reviewer"):
        parts.append(f"by {item.reviewer}")
    if item.HasField("confidence"):
        parts.append(f"confidence {item.confidence:g}")
    return " ".join(parts) + (f": {shorten_line(item.notes)}" if item.notes else "")


def earlier_reviews_text(item: journal_pb2.Decision) -> str:
    # The latest one is the outcome and the lesson of the decision itself.
    lines = [review_line(review) for review in item.history.reviews[1:]]
    hidden = item.history.review_count - len(item.history.reviews)
    return "\n".join([*lines, *([f"and {hidden} before"] if hidden > 0 else [])])


def former_titles_text(item: journal_pb2.Decision) -> str:
    """Return the former contents by their titles, a line each; `--json` prints all of them."""
    return "\n".join(
        f"{former.revision} until {format_instant(former.replaced_date)}: {shorten_line(former.content.title)}"
        for former in item.history.former_contents
    )


def thoughts_text(item: journal_pb2.Decision) -> str:
    lines = [
        f"{format_instant(thought.recorded_date)} {thought.agent}: {shorten_line(thought.text) or '(private)'}"
        for thought in item.thoughts.items
    ]
    hidden = item.thoughts.count - len(lines)
    return "\n".join([*([f"{hidden} before, which `cstp thoughts` lists"] if hidden else []), *lines])


def print_thoughts(console: Console, answer: journal_pb2.ListThoughtsResponse) -> None:
    def row(item: journal_pb2.Thought) -> tuple[str | Text, ...]:
        shared = "shared" if item.visibility == types_pb2.VISIBILITY_SHARED else ""
        details = [*field_texts(item, "{agent}", "{decision_id}", "{correlation_id}"), shared, item.id]
        return format_instant(item.recorded_date), entry_text(item.text or "(private)", details)

    print_listing(console, answer.thoughts, row, "No matching thoughts.")


DECISION_ROWS: Rows = {
    "id": "{id}",
    "status": "{status}",
    "outcome": "{outcome}",
    "lesson": "{notes}",
    "date": "{date}",
    "reviewed": "{reviewed_date}",
    "before": earlier_reviews_text,
    "review by": "{review_by}",
    "category": "{category}",
    "stakes": "{stakes}",
    "confidence": "{confidence}",
    "project": "{project}",
    "tags": "{tags}",
    "agent": "{agent}",
    "visibility": "{visibility}",
    "supersedes": "{links.supersedes}",
    "depends on": "{links.depends_on}",
    "relates to": "{links.relates_to}",
    "summarizes": "{links.summarizes}",
    "source": "{source}",
    "content": lambda item: revision_text(item.history.revision),
    "former": former_titles_text,
    "revision": "{journal_revision}",
    "reasons": reasons_text,
    "context": "{context}",
    "thoughts": thoughts_text,
}
"""The fields of a decision other than its title, by their labels."""


def print_duplicates(console: Console, report: journal_pb2.FindDuplicateDecisionsResponse) -> None:
    for group in report.groups:
        hidden = group.count - len(group.decisions)
        console.print(Text(f"{group.count} alike, up to {group.similarity:.2f}", style="bold"))
        print_decisions(console, group.decisions)
        if hidden:
            console.print(Text(f"and {hidden} more", style="dim"))
    compared, groups = count_noun(report.compared, "decision"), count_noun(len(report.groups), "group")
    summary = f"{compared} compared, {groups} of duplicates"
    more = "; there is more: narrow it with filters, or raise --limit" if report.truncated else ""
    console.print(Text(f"{summary}{more}.", style="dim"))


def change_line(change: journal_pb2.WatchDecisionsResponse) -> str:
    if change.HasField("deleted_id"):
        return to_printable(f"deleted     {change.deleted_id}")
    item = change.decision
    state = enum_word(types_pb2.Outcome, item.outcome) or enum_word(types_pb2.DecisionStatus, item.status)
    details = field_texts(item, "{id}", "{agent}", "{category}", "{project}")
    return to_printable(f"{state:11} {shorten_line(item.title)} ({', '.join(details)})")


def intent_line(item: intents_pb2.WatchedIntent) -> str:
    headline = shorten_line(item.intent) if item.HasField("intent") else "(its text is not stored)"
    details = field_texts(item, "{correlation_id}", "{agent}", "{stakes}", "{category}", "{project}")
    details += filter(None, [revision_text(item.revision)])
    return to_printable(f"{format_instant(item.received_at)}  {headline} ({', '.join(details)})")


def print_due_reviews(console: Console, answer: journal_pb2.ListDecisionsResponse) -> None:
    def row(item: journal_pb2.Decision) -> tuple[str | Text, ...]:
        entry = entry_text(item.title, field_texts(item, "{category}", "{project}", "{id}"), item.notes)
        return format_date(item.review_by), outcome_or_status_text(item), entry

    print_listing(console, answer.decisions, row, "No review is due.")


def print_audit_entries(console: Console, found: Sequence[audit_pb2.AuditEntry]) -> None:
    def row(item: audit_pb2.AuditEntry) -> tuple[str | Text, ...]:
        event = enum_word(audit_pb2.AuditEvent, item.event).replace("_", " ")
        headline = f"{event} by {item.requesting_agent or 'an unknown caller'}"
        details = [
            counted_calls_text(item),
            *field_texts(item, "claims to be {claimed_agent}"),
            *(f"blocked by {name}" for name in item.violations),
            *(f"warned by {name}" for name in item.warnings),
            *(f"dry run of {name}" for name in item.dryrun_violations),
            *(f"{peer.agent} {enum_word(types_pb2.PeerStatus, peer.status).replace('_', ' ')}" for peer in item.peers),
            *field_texts(item, "{decision_id}", "correlation id {correlation_id}"),
            revision_text(item.intent_revision),
            *field_texts(item, "request {request_id}"),
        ]
        entry = entry_text(f"{headline}: {item.action}" if item.HasField("action") else headline, details)
        return format_instant(item.timestamp), entry_verdict_text(item), entry

    print_listing(console, found, row, "No matching entries.")


def print_audit_summary(console: Console, answer: audit_pb2.SummarizeAuditResponse) -> None:
    """Print how many entries there are, in all, by time and by group."""
    table = TextTable("entries", "allowed", "blocked", "of")
    period = f"{format_instant(answer.after)} to {format_instant(answer.before)}"
    rows = [(answer.counts, period), *((each.counts, format_instant(each.start)) for each in answer.buckets)]
    rows += [
        (each.counts, f"{enum_word(audit_pb2.AuditGrouping, each.grouping)} {each.value}") for each in answer.groups
    ]
    for counts, name in rows:
        table.add_row(str(counts.entries), str(counts.allowed), str(counts.blocked), Text(to_printable(name)))
    console.print(table)


def counted_calls_text(item: audit_pb2.AuditEntry) -> str:
    """Return the count of an entry that counts others or calls (with their time range); empty for a single call."""
    if not item.HasField("count"):
        return ""
    if not item.HasField("first_at"):
        return count_noun(item.count, "entry", "entries")
    return f"{count_noun(item.count, 'call')} from {format_instant(item.first_at)} to {format_instant(item.last_at)}"


def entry_verdict_text(item: audit_pb2.AuditEntry) -> Text:
    if item.HasField("error"):
        return Text(item.error, style="red")
    if not item.HasField("allowed"):
        return Text("")
    return Text("allowed", style="green") if item.allowed else Text("blocked", style="red")


def print_intents(console: Console, found: Sequence[audit_pb2.IntentRecord]) -> None:
    def row(item: audit_pb2.IntentRecord) -> tuple[str | Text, ...]:
        details = [
            *field_texts(item, "{agent}", "{stakes}", "{category}", "{project}", "{correlation_id}"),
            revision_text(item.revision, item.previous_revision),
            "shared" if item.visibility == types_pb2.VISIBILITY_SHARED else "",
            item.closing.decision_id,
            *item.paths[:MAX_PATHS],
            *([f"{len(item.paths) - MAX_PATHS} more paths"] if len(item.paths) > MAX_PATHS else []),
        ]
        headline = item.intent if item.HasField("intent") else "(its text is not stored)"
        entry = entry_text(headline, details, item.closing.notes)
        return format_instant(item.received_at), closing_text(item), entry

    print_listing(console, found, row, "No matching intents.")
