"""Output of decisions, verdicts, intents and audit entries for people."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

from google.protobuf.timestamp_pb2 import Timestamp
from rich.console import Console
from rich.text import Text

from cstp_grpc.cli.console import TextTable
from cstp_grpc.cli.output import to_printable
from cstp_grpc.common.counted_nouns import count_noun
from cstp_grpc.contract.enums import QUORUM_GUARDRAIL, UNREACHABLE_GUARDRAIL
from cstp_grpc.gen.cstp.v1 import audit_pb2, code_pb2, cstp_pb2, intents_pb2, journal_pb2, pre_actions_pb2, types_pb2

if TYPE_CHECKING:
    from google.protobuf.internal.enum_type_wrapper import _EnumTypeWrapper


NumberT = TypeVar("NumberT", bound=int)

OUTCOME_STYLES = {"success": "green", "failure": "red", "partial": "yellow", "abandoned": "dim"}
"""By outcome."""
MAX_LESSON = 400
"""Characters of a lesson in a list; `cstp show` prints all of it."""
MAX_PATHS = 3
"""Paths of an intent that a listing names at most."""


def enum_word(enum: _EnumTypeWrapper[NumberT], number: NumberT) -> str:
    """Return the lower-case word of an enum value, or empty if unspecified."""
    # Every enum of the contract begins with `..._UNSPECIFIED`, by which the prefix of its values is known.
    prefix = enum.DESCRIPTOR.values_by_number[0].name.removesuffix("UNSPECIFIED")
    return enum.Name(number).removeprefix(prefix).lower() if number else ""


def format_date(stamp: Timestamp) -> str:
    """Return the date of an instant, in UTC."""
    return stamp.ToDatetime().date().isoformat()


def format_instant(stamp: Timestamp) -> str:
    return stamp.ToDatetime().isoformat(sep=" ", timespec="seconds") + "Z"


def outcome_text(outcome: types_pb2.Outcome.ValueType) -> Text:
    name = enum_word(types_pb2.Outcome, outcome)
    return Text(name, style=OUTCOME_STYLES.get(name, ""))


def entry_text(headline: str, details: Iterable[str], lesson: str = "") -> Text:
    text = Text(to_printable(headline))
    text.append(f"\n{to_printable(', '.join(filter(None, details)))}", style="dim")
    if lesson:
        text.append(f"\nLesson: {to_printable(shorten_line(lesson))}", style="italic")
    return text


def print_query_answer(console: Console, answer: cstp_pb2.QueryDecisionsResponse) -> None:
    """Print the result of a query."""
    if not answer.decisions:
        console.print("No decision resembles this. A lower --min-score finds what is less alike.")
        print_responses(console, answer.responses)
        return
    table = TextTable()
    for item in answer.decisions:
        details = [
            format_date(item.date),
            item.category,
            item.project,
            item.agent,
            item.id,
            *item.reasons,
            origin_text(item),
        ]
        entry = entry_text(item.title, details, item.notes)
        score = item.score if item.HasField("score") else 1 - item.distance
        table.add_row(f"{score:.2f}", outcome_or_status_text(item.outcome, item.status), entry)
    console.print(table)
    console.print(
        Text(f"{answer.total} found in {answer.query_time_ms} ms by {to_printable(answer.agent)}", style="dim")
    )
    print_responses(console, answer.responses)


def origin_text(item: cstp_pb2.DecisionSummary | cstp_pb2.SimilarDecision) -> str:
    """Return the agent that a decision is from, if several agents were asked."""
    return f"from {item.origin}" if item.HasField("origin") else ""


def outcome_or_status_text(outcome: types_pb2.Outcome.ValueType, status: types_pb2.DecisionStatus.ValueType) -> Text:
    return outcome_text(outcome) if outcome else Text(enum_word(types_pb2.DecisionStatus, status))


EFFECT_TEXTS = {
    types_pb2.SEVERITY_BLOCK: ("  blocks", "red"),
    types_pb2.SEVERITY_APPROVE: ("  needs approval", "magenta"),
}
"""How a violation is labelled, and in which style."""


def print_verdict(console: Console, verdict: cstp_pb2.CheckGuardrailsResponse | cstp_pb2.GuardrailStatus) -> None:
    """Print a verdict with its violations, warnings and dry runs."""
    console.print(headline_of_verdict(verdict).append(f" by {describe_deciders(verdict)}", style="not bold"))
    table = TextTable()
    for item in verdict.violations:
        # Severities of later versions are among the violations because they block.
        words, style = EFFECT_TEXTS.get(item.severity, EFFECT_TEXTS[types_pb2.SEVERITY_BLOCK])
        table.add_row(Text(words, style=style), violation_text(item))
    for item in verdict.warnings:
        table.add_row(Text("  warns", style="yellow"), violation_text(item))
    for item in verdict.dryrun_violations:
        table.add_row(Text("  dry run", style="dim"), violation_text(item))
    for key in verdict.ignored_context:
        hint = f"; did you mean {key.closest}?" if key.HasField("closest") else ""
        table.add_row(Text("  ignored", style="dim"), Text(to_printable(f"{key.name}, which no guardrail knows{hint}")))
    if table.row_count:
        console.print(table)
    print_approval_of_verdict(console, verdict)


def headline_of_verdict(verdict: cstp_pb2.CheckGuardrailsResponse | cstp_pb2.GuardrailStatus) -> Text:
    """Return a verdict in one or two words."""
    if verdict.allowed:
        return Text("Allowed", style="bold green")
    if verdict.approval_required:
        return Text("Approval required", style="bold magenta")
    return Text("Denied" if is_denied(verdict) else "Blocked", style="bold red")


def is_denied(verdict: cstp_pb2.CheckGuardrailsResponse | cstp_pb2.GuardrailStatus) -> bool:
    return verdict.approval.status == types_pb2.APPROVAL_STATUS_DENIED


def print_approval_of_verdict(
    console: Console, verdict: cstp_pb2.CheckGuardrailsResponse | cstp_pb2.GuardrailStatus
) -> None:
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


def describe_deciders(verdict: cstp_pb2.CheckGuardrailsResponse | cstp_pb2.GuardrailStatus) -> str:
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


def print_votes(console: Console, answer: cstp_pb2.CheckGuardrailsResponse | cstp_pb2.GuardrailStatus) -> None:
    if not answer.HasField("quorum"):
        return
    quorum = answer.quorum
    console.print(f"{quorum.allowing} of {len(quorum.votes)} required peers allow it, {quorum.needed} must")
    for vote in quorum.votes:
        how, style = ("for", "green") if vote.allow else ("against", "red")
        console.print(Text(f"  {to_printable(vote.agent)} votes ").append(how, style=style))


def print_responses(console: Console, found: Sequence[cstp_pb2.AgentResponse]) -> None:
    if not found:
        return
    console.print(Text("Peers", style="bold"))
    table = TextTable()
    for item in found:
        answered = item.status == types_pb2.PEER_STATUS_ANSWERED
        status = Text(enum_word(types_pb2.PeerStatus, item.status).replace("_", " "), style="" if answered else "red")
        table.add_row(Text(f"  {to_printable(item.agent)}"), status, response_text(item))
    console.print(table)


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
    """Print the feedback on an intent."""
    received = f"Received by {answer.responding_agent} at {format_instant(answer.received_at)}"
    parts = [received, f"correlation id {answer.correlation_id}", revision_text(answer.revision)]
    console.print(to_printable(", ".join(filter(None, parts))))
    if answer.HasField("guardrail_status"):
        status = answer.guardrail_status
        print_verdict(console, status)
        print_votes(console, status)
    if answer.HasField("code_context"):
        print_code_context(console, answer.code_context)
    if answer.similar_decisions:
        console.print(Text("Similar decisions", style="bold"))
        table = TextTable()
        for item in answer.similar_decisions:
            entry = entry_text(item.title, [format_date(item.date), item.id, origin_text(item)], item.notes)
            table.add_row(f"  {item.score:.2f}", outcome_text(item.outcome), entry)
        console.print(table)
    if answer.related_intents:
        print_related_intents(console, answer.related_intents)
    if answer.suggestions:
        console.print(Text("Suggestions", style="bold"))
        table = TextTable()
        for suggestion in answer.suggestions:
            table.add_row("  -", Text(to_printable(suggestion)))
        console.print(table)
    print_responses(console, answer.responses)


def print_pre_action(console: Console, answer: pre_actions_pb2.PreActionResponse) -> None:
    print_announce_answer(console, answer.feedback)
    if answer.HasField("decision"):
        console.print(to_printable(f"Recorded as {answer.decision.id}: {answer.decision.title}"))
    else:
        console.print("No decision was recorded.")


def print_related_intents(console: Console, found: Sequence[intents_pb2.RelatedIntent]) -> None:
    console.print(Text("Related intents of other agents", style="bold"))
    table = TextTable()
    for item in found:
        blocked = "blocked" if item.HasField("allowed") and not item.allowed else ""
        agent = f"{item.origin}/{item.agent}" if item.HasField("origin") else item.agent
        details = [agent, format_instant(item.received_at), blocked, item.correlation_id, item.project]
        table.add_row(f"  {item.score:.2f}", closing_text(item), entry_text(item.intent, details, item.closing.notes))
    console.print(table)


def closing_text(item: intents_pb2.RelatedIntent | audit_pb2.IntentRecord) -> Text:
    return outcome_text(item.closing.outcome) if item.HasField("closing") else Text("open")


def print_closed_intent(console: Console, answer: intents_pb2.CloseIntentResponse) -> None:
    outcome = enum_word(types_pb2.Outcome, answer.closing.outcome)
    parts = [f"{answer.correlation_id} is closed: {outcome}", revision_text(answer.revision)]
    console.print(to_printable(", ".join(filter(None, parts))))


def revision_text(revision: int, previous: int = 0) -> str:
    """Return the revision of an intent and the one it replaced, or empty for the first."""
    if revision <= 1:
        return ""
    return f"revision {revision}, after {previous}" if previous else f"revision {revision}"


def print_code_context(console: Console, code: code_pb2.CodeContext) -> None:
    """Print the context of code in short: checks, pitfalls, introductions, learnings, omissions."""
    governed = f"governed by {', '.join(code.nodes)}" if code.covered else "about which nothing is written down"
    console.print(Text(to_printable(f"Code of {code.project}, {governed}"), style="bold"))
    table = TextTable()
    for check in code.check_items:
        table.add_row("  check", Text(to_printable(shorten_line(check))))
    for pitfall in code.pitfalls:
        table.add_row("  pitfalls", entry_text(shorten_line(pitfall.text), [f"{pitfall.file}:{pitfall.line}"]))
    for note in code.introduction:
        table.add_row("  introduction", entry_text(shorten_line(note.text), [f"{note.file}:{note.line}"]))
    for learning in code.pending:
        table.add_row("  pending", entry_text(f"{learning.type}: {learning.title}", [learning.id, *learning.paths]))
    for reason in code.missing:
        table.add_row(Text("  missing", style="red"), Text(to_printable(reason)))
    if table.row_count:
        console.print(table)


def shorten_line(text: str) -> str:
    return textwrap.shorten(text, MAX_LESSON, placeholder=" …")


def print_decisions(console: Console, found: Sequence[journal_pb2.Decision]) -> None:
    table = TextTable()
    for item in found:
        details = [item.category, item.project, item.agent, item.id]
        table.add_row(
            format_date(item.date), outcome_or_status_text(item.outcome, item.status), entry_text(item.title, details)
        )
    console.print(table if found else "There are no such decisions.")


def print_decision(console: Console, item: journal_pb2.Decision) -> None:
    console.print(Text(to_printable(item.title), style="bold"))
    table = TextTable()
    for name, value in decision_fields(item):
        if value:
            table.add_row(Text(name, style="dim"), value)
    console.print(table)


def decision_fields(item: journal_pb2.Decision) -> list[tuple[str, str]]:
    """Return the fields of a decision other than its title, with their labels."""
    reasons = [
        f"{reason.type}{f' ({reason.strength:g})' if reason.HasField('strength') else ''}: {reason.text}".rstrip(": ")
        for reason in item.reasons
    ]
    return [
        ("id", item.id),
        ("status", enum_word(types_pb2.DecisionStatus, item.status)),
        ("outcome", enum_word(types_pb2.Outcome, item.outcome)),
        ("lesson", item.notes),
        ("date", format_instant(item.date) if item.HasField("date") else ""),
        ("reviewed", format_instant(item.reviewed_date) if item.HasField("reviewed_date") else ""),
        ("before", earlier_reviews_text(item.history)),
        ("review by", format_instant(item.review_by) if item.HasField("review_by") else ""),
        ("category", item.category),
        ("stakes", enum_word(types_pb2.Stakes, item.stakes)),
        ("confidence", f"{item.confidence:g}" if item.HasField("confidence") else ""),
        ("project", item.project),
        ("tags", ", ".join(item.tags)),
        ("agent", item.agent),
        ("visibility", enum_word(types_pb2.Visibility, item.visibility)),
        ("supersedes", ", ".join(item.links.supersedes)),
        ("depends on", ", ".join(item.links.depends_on)),
        ("relates to", ", ".join(item.links.relates_to)),
        ("source", item.source),
        ("content", revision_text(item.history.revision) if item.history.revision > 1 else ""),
        ("former", former_titles_text(item.history)),
        ("revision", item.journal_revision),
        ("reasons", "\n".join(reasons)),
        ("context", item.context),
    ]


def review_line(item: journal_pb2.DecisionReview) -> str:
    parts = [format_date(item.reviewed_date), enum_word(types_pb2.Outcome, item.outcome)]
    if item.HasField("reviewer"):
        parts.append(f"by {item.reviewer}")
    if item.HasField("confidence"):
        parts.append(f"confidence {item.confidence:g}")
    return " ".join(parts) + (f": {shorten_line(item.notes)}" if item.notes else "")


def earlier_reviews_text(history: journal_pb2.DecisionHistory) -> str:
    # The latest one is the outcome and the lesson of the decision itself.
    lines = [review_line(item) for item in history.reviews[1:]]
    hidden = history.review_count - len(history.reviews)
    return "\n".join([*lines, *([f"and {hidden} before"] if hidden > 0 else [])])


def print_duplicates(console: Console, report: journal_pb2.FindDuplicateDecisionsResponse) -> None:
    """Print groups of duplicates."""
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
    details = [item.id, item.agent, item.category, item.project]
    return to_printable(f"{state:11} {shorten_line(item.title)} ({', '.join(filter(None, details))})")


def intent_line(item: intents_pb2.WatchedIntent) -> str:
    headline = shorten_line(item.intent) if item.HasField("intent") else "(its text is not stored)"
    stakes = enum_word(types_pb2.Stakes, item.stakes)
    details = [item.correlation_id, item.agent, stakes, item.category, item.project, revision_text(item.revision)]
    return to_printable(f"{format_instant(item.received_at)}  {headline} ({', '.join(filter(None, details))})")


def former_titles_text(history: journal_pb2.DecisionHistory) -> str:
    """Return the former contents by their titles, a line each; `--json` prints all of them."""
    return "\n".join(
        f"{item.revision} until {format_instant(item.replaced_date)}: {shorten_line(item.content.title)}"
        for item in history.former_contents
    )


def print_due_reviews(console: Console, answer: journal_pb2.ListDecisionsResponse) -> None:
    table = TextTable()
    for item in answer.decisions:
        details = [item.category, item.project, item.id]
        table.add_row(
            format_date(item.review_by),
            outcome_or_status_text(item.outcome, item.status),
            entry_text(item.title, details, item.notes),
        )
    console.print(table if answer.decisions else "No review is due.")


def print_audit_entries(console: Console, found: Sequence[audit_pb2.AuditEntry]) -> None:
    """Print a listing of the audit trail."""
    table = TextTable()
    for item in found:
        event = enum_word(audit_pb2.AuditEvent, item.event).replace("_", " ")
        agent = item.requesting_agent or "an unknown caller"
        headline = f"{event} by {agent}" + (f": {item.action}" if item.HasField("action") else "")
        details = [
            counted_calls_text(item),
            f"claims to be {item.claimed_agent}" if item.HasField("claimed_agent") else "",
            *(f"blocked by {name}" for name in item.violations),
            *(f"warned by {name}" for name in item.warnings),
            *(f"dry run of {name}" for name in item.dryrun_violations),
            *(f"{peer.agent} {enum_word(types_pb2.PeerStatus, peer.status).replace('_', ' ')}" for peer in item.peers),
            item.decision_id,
            f"correlation id {item.correlation_id}" if item.HasField("correlation_id") else "",
            revision_text(item.intent_revision),
            f"request {item.request_id}" if item.request_id else "",
        ]
        table.add_row(format_instant(item.timestamp), entry_verdict_text(item), entry_text(headline, details))
    console.print(table if found else "There are no such entries.")


def counted_calls_text(item: audit_pb2.AuditEntry) -> str:
    """Return the number of what an entry counts, of calls with their time range, or empty for a single call."""
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
    """Print a listing of announced intents."""
    table = TextTable()
    for item in found:
        headline = item.intent if item.HasField("intent") else "(its text is not stored)"
        details = [
            item.agent,
            enum_word(types_pb2.Stakes, item.stakes),
            item.category,
            item.project,
            item.correlation_id,
        ]
        details.append(revision_text(item.revision, item.previous_revision))
        details.append("shared" if item.visibility == types_pb2.VISIBILITY_SHARED else "")
        details.append(item.closing.decision_id)
        more = [f"{len(item.paths) - MAX_PATHS} more paths"] if len(item.paths) > MAX_PATHS else []
        table.add_row(
            format_instant(item.received_at),
            closing_text(item),
            entry_text(headline, [*details, *item.paths[:MAX_PATHS], *more], item.closing.notes),
        )
    console.print(table if found else "There are no such intents.")
