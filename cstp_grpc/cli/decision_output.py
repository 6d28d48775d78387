"""Output of decisions, verdicts, intents and audit entries for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

from rich.console import Console
from rich.text import Text

from cstp_grpc.cli.answer_fields import (
    Rows,
    entry_text,
    enum_word,
    field_table,
    field_texts,
    format_date,
    format_instant,
    print_listing,
    print_table,
    rows_of,
    shorten_line,
)
from cstp_grpc.cli.console import TextTable
from cstp_grpc.cli.output import to_printable
from cstp_grpc.common.counted_nouns import count_noun
from cstp_grpc.contract.enums import QUORUM_GUARDRAIL, UNREACHABLE_GUARDRAIL
from cstp_grpc.gen.cstp.v1 import audit_pb2, code_pb2, cstp_pb2, intents_pb2, journal_pb2, pre_actions_pb2, types_pb2

Verdict: TypeAlias = cstp_pb2.CheckGuardrailsResponse | cstp_pb2.GuardrailStatus

OUTCOME_STYLES = {"success": "green", "failure": "red", "partial": "yellow", "abandoned": "dim"}
"""By outcome."""
MAX_PATHS = 3
"""Paths of an intent that a listing names at most."""


def outcome_text(outcome: types_pb2.Outcome.ValueType) -> Text:
    name = enum_word(types_pb2.Outcome, outcome)
    return Text(name, style=OUTCOME_STYLES.get(name, ""))


def print_query_answer(console: Console, answer: cstp_pb2.QueryDecisionsResponse) -> None:
    def row(item: cstp_pb2.DecisionSummary) -> tuple[str | Text, ...]:
        details = field_texts(item, "{category}", "{project}", "{agent}", "{id}")
        entry = entry_text(item.title, [format_date(item.date), *details, *item.reasons, origin_text(item)], item.notes)
        score = item.score if item.HasField("score") else 1 - item.distance
        return f"{score:.2f}", outcome_or_status_text(item), entry

    print_listing(
        console, answer.decisions, row, "No decision resembles this. A lower --min-score finds less similar ones."
    )
    if answer.decisions:
        summary = f"{answer.total} found in {answer.query_time_ms} ms by {to_printable(answer.agent)}"
        console.print(Text(summary, style="dim"))
    print_responses(console, answer.responses)


def origin_text(item: cstp_pb2.DecisionSummary | cstp_pb2.SimilarDecision) -> str:
    return f"from {item.origin}" if item.HasField("origin") else ""


def outcome_or_status_text(item: cstp_pb2.DecisionSummary | journal_pb2.Decision) -> Text:
    return outcome_text(item.outcome) if item.outcome else Text(enum_word(types_pb2.DecisionStatus, item.status))


EFFECT_TEXTS = {
    types_pb2.SEVERITY_BLOCK: ("  blocks", "red"),
    types_pb2.SEVERITY_APPROVE: ("  needs approval", "magenta"),
}
"""How a violation is labelled, and in which style."""


def print_verdict(console: Console, verdict: Verdict) -> None:
    console.print(headline_of_verdict(verdict).append(f" by {describe_deciders(verdict)}", style="not bold"))
    print_table(console, verdict_rows(verdict))
    print_approval_of_verdict(console, verdict)


def verdict_rows(verdict: Verdict) -> Iterator[tuple[Text, Text]]:
    for item in verdict.violations:
        # Severities of later versions are among the violations because they block.
        words, style = EFFECT_TEXTS.get(item.severity, EFFECT_TEXTS[types_pb2.SEVERITY_BLOCK])
        yield Text(words, style=style), violation_text(item)
    for item in verdict.warnings:
        yield Text("  warns", style="yellow"), violation_text(item)
    for item in verdict.dryrun_violations:
        yield Text("  dry run", style="dim"), violation_text(item)
    for key in verdict.ignored_context:
        hint = f"; did you mean {key.closest}?" if key.HasField("closest") else ""
        yield Text("  ignored", style="dim"), Text(to_printable(f"{key.name}, which no guardrail knows{hint}"))


def headline_of_verdict(verdict: Verdict) -> Text:
    if verdict.allowed:
        return Text("Allowed", style="bold green")
    if verdict.approval_required:
        return Text("Approval required", style="bold magenta")
    denied = verdict.approval.status == types_pb2.APPROVAL_STATUS_DENIED
    return Text("Denied" if denied else "Blocked", style="bold red")


def print_approval_of_verdict(console: Console, verdict: Verdict) -> None:
    """Print which approval lets the action through or is missing, and what to do next."""
    if not verdict.HasField("approval"):
        return
    approval = verdict.approval
    said = f": {to_printable(approval.comment)}" if approval.comment else ""
    status = enum_word(types_pb2.ApprovalStatus, approval.status)
    console.print(f"Approval {to_printable(approval.id)} is {status}{said}", soft_wrap=True)
    if approval.status == types_pb2.APPROVAL_STATUS_PENDING:
        until = format_instant(approval.expires_at)
        # Not with the token of this command: nobody decides on a request of their own.
        deciding = "Have another agent, with the permission approve, grant it"
        command = approval.instructions or f"cstp approvals grant {approval.id} --token TOKEN"
        console.print(f"{deciding} until {until}, then repeat this:", soft_wrap=True)
        console.print(f"  {to_printable(command)}", soft_wrap=True)


def describe_deciders(verdict: Verdict) -> str:
    """Return the deciders of a verdict: all guardrails, the number of those that block, or federation."""
    violations, evaluated = verdict.violations, verdict.evaluated
    blocking = sum(item.guardrail_id not in (QUORUM_GUARDRAIL, UNREACHABLE_GUARDRAIL) for item in violations)
    if violations and not blocking:
        # No guardrail blocks it, but peers do not allow it.
        return "federation"
    some = f"{blocking} of " if blocking else ""
    return f"{some}{count_noun(evaluated, 'guardrail')}"


def violation_text(item: types_pb2.Violation) -> Text:
    whose = f"{item.agent}/" if item.HasField("agent") else ""
    text = Text(to_printable(f"{whose}{item.guardrail_id}: {item.message}"))
    if item.suggestion:
        text.append(f"\n{item.suggestion}", style="italic")
    return text


def print_check_answer(console: Console, answer: cstp_pb2.CheckGuardrailsResponse) -> None:
    print_verdict(console, answer)
    print_votes(console, answer)
    print_responses(console, answer.responses)


def print_votes(console: Console, answer: Verdict) -> None:
    if not answer.HasField("quorum"):
        return
    quorum = answer.quorum
    console.print(f"{quorum.allowing} of {len(quorum.votes)} required peers allow it, {quorum.needed} must")
    for vote in quorum.votes:
        how, style = ("for", "green") if vote.allow else ("against", "red")
        console.print(Text(f"  {to_printable(vote.agent)} votes ").append(how, style=style))


def print_responses(console: Console, found: Sequence[cstp_pb2.AgentResponse]) -> None:
    def row(item: cstp_pb2.AgentResponse) -> tuple[str | Text, ...]:
        style = "" if item.status == types_pb2.PEER_STATUS_ANSWERED else "red"
        status = Text(enum_word(types_pb2.PeerStatus, item.status).replace("_", " "), style=style)
        return f"  {to_printable(item.agent)}", status, response_text(item)

    print_table(console, map(row, found), "Peers")


def response_text(item: cstp_pb2.AgentResponse) -> Text:
    """Return a summary of a peer's response with its latency."""
    parts = []
    if item.HasField("guardrail_status"):
        status = item.guardrail_status
        blocking = [violation.guardrail_id for violation in status.violations]
        verb = "needs approval" if status.approval_required else "blocks it"
        if status.HasField("approval"):
            verb += f" ({enum_word(types_pb2.ApprovalStatus, status.approval.status)}: {status.approval.id})"
        parts.append("allows it" if status.allowed else f"{verb} by {', '.join(blocking)}")
        parts += [f"warns by {violation.guardrail_id}" for violation in status.warnings]
    if item.HasField("decisions"):
        parts.append(f"found {len(item.decisions.decisions)}")
    if item.HasField("feedback"):
        parts.append(f"remembers {len(item.feedback.similar_decisions)}")
    if item.HasField("error"):
        parts.append(f"{item.error.reason}: {item.error.message}")
    return Text(to_printable(", ".join([*parts, f"{item.latency_ms:.0f} ms"])))


def print_announce_answer(console: Console, answer: cstp_pb2.AnnounceIntentResponse) -> None:
    received = f"Received by {answer.responding_agent} at {format_instant(answer.received_at)}"
    parts = [received, f"correlation id {answer.correlation_id}", revision_text(answer.revision)]
    console.print(to_printable(", ".join(filter(None, parts))))
    if answer.HasField("guardrail_status"):
        status = answer.guardrail_status
        print_verdict(console, status)
        print_votes(console, status)
    if answer.HasField("code_context"):
        print_code_context(console, answer.code_context)
    print_table(console, map(similar_row, answer.similar_decisions), "Similar decisions")
    print_table(console, map(related_row, answer.related_intents), "Related intents of other agents")
    print_table(console, (("  -", to_printable(each)) for each in answer.suggestions), "Suggestions")
    print_responses(console, answer.responses)


def similar_row(item: cstp_pb2.SimilarDecision) -> tuple[str | Text, ...]:
    entry = entry_text(item.title, [format_date(item.date), item.id, origin_text(item)], item.notes)
    return f"  {item.score:.2f}", outcome_text(item.outcome), entry


def related_row(item: intents_pb2.RelatedIntent) -> tuple[str | Text, ...]:
    blocked = "blocked" if item.HasField("allowed") and not item.allowed else ""
    agent = f"{item.origin}/{item.agent}" if item.HasField("origin") else item.agent
    details = [agent, format_instant(item.received_at), blocked, item.correlation_id, item.project]
    return f"  {item.score:.2f}", closing_text(item), entry_text(item.intent, details, item.closing.notes)


def print_pre_action(console: Console, answer: pre_actions_pb2.PreActionResponse) -> None:
    print_announce_answer(console, answer.feedback)
    if answer.HasField("decision"):
        console.print(to_printable(f"Recorded as {answer.decision.id}: {answer.decision.title}"))
    else:
        console.print("No decision was recorded.")


def closing_text(item: intents_pb2.RelatedIntent | audit_pb2.IntentRecord) -> Text:
    return outcome_text(item.closing.outcome) if item.HasField("closing") else Text("open")


def print_closed_intent(console: Console, answer: intents_pb2.CloseIntentResponse) -> None:
    outcome = enum_word(types_pb2.Outcome, answer.closing.outcome)
    parts = [f"{answer.correlation_id} is closed: {outcome}", revision_text(answer.revision)]
    console.print(to_printable(", ".join(filter(None, parts))))


def revision_text(revision: int, previous: int = 0) -> str:
    """Return the revision of an intent and the one it replaced, or empty for the first."""
    after = f", after {previous}" if previous else ""
    return f"revision {revision}{after}" if revision > 1 else ""


def print_code_context(console: Console, code: code_pb2.CodeContext) -> None:
    """Print the context of code in short: checks, pitfalls, introductions, learnings, omissions."""
    governed = f"governed by {', '.join(code.nodes)}" if code.covered else "without a node"
    console.print(Text(to_printable(f"Code of {code.project}, {governed}"), style="bold"))
    print_table(console, code_rows(code))


def code_rows(code: code_pb2.CodeContext) -> Iterator[tuple[str | Text, str | Text]]:
    for check in code.check_items:
        yield "  check", to_printable(shorten_line(check))
    for label, notes in (("  pitfalls", code.pitfalls), ("  introduction", code.introduction)):
        for note in notes:
            yield label, entry_text(shorten_line(note.text), [f"{note.file}:{note.line}"])
    for learning in code.pending:
        yield "  pending", entry_text(f"{learning.type}: {learning.title}", [learning.id, *learning.paths])
    for reason in code.missing:
        yield Text("  missing", style="red"), to_printable(reason)


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
    "source": "{source}",
    "content": lambda item: revision_text(item.history.revision),
    "former": former_titles_text,
    "revision": "{journal_revision}",
    "reasons": reasons_text,
    "context": "{context}",
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
