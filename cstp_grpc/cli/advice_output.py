"""Output of searches, verdicts and announcements for people, from answers as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cstp_grpc.cli.answer_fields import (
    OUTCOME_STYLES,
    entry_text,
    print_listing,
    print_table,
    revision_text,
    shorten_line,
)
from cstp_grpc.cli.console import Console, Text
from cstp_grpc.cli.output import to_printable
from cstp_grpc.common.counted_nouns import count_noun
from cstp_grpc.contract.enums import QUORUM_GUARDRAIL, UNREACHABLE_GUARDRAIL

Answer = Mapping[str, Any]
"""A message of the contract as JSON."""


EFFECT_TEXTS = {"block": ("  blocks", "red"), "approve": ("  needs approval", "magenta")}
"""How a violation is labelled, and in which style, by severity."""


def outcome_text(word: str) -> Text:
    return Text(word, style=OUTCOME_STYLES.get(word, ""))


def date_of(instant: str) -> str:
    """Return the date of an instant, both as text, in UTC."""
    return instant[:10]


def seconds_of(instant: str) -> str:
    """Return an instant without fractions of a second, as people read it."""
    return instant and f"{instant[:19].replace('T', ' ')}Z"


def print_query_answer(console: Console, answer: Answer) -> None:
    def row(item: Answer) -> tuple[str | Text, ...]:
        details = [item.get(name, "") for name in ("category", "project", "agent", "id")]
        details = [date_of(item.get("date", "")), *details, *item.get("reasons", ()), origin_text(item)]
        score = item["score"] if "score" in item else 1 - item["distance"]
        state = outcome_text(item["outcome"]) if "outcome" in item else Text(item.get("status", ""))
        return f"{score:.2f}", state, entry_text(item["title"], details, item.get("notes", ""))

    print_listing(
        console, answer["decisions"], row, "No decision resembles this. A lower --min-score finds less similar ones."
    )
    if answer["decisions"] and {"total", "queryTimeMs", "agent"} <= answer.keys():
        summary = f"{answer['total']} found in {answer['queryTimeMs']} ms by {to_printable(answer['agent'])}"
        console.print(Text(summary, style="dim"))
    print_responses(console, answer.get("responses", ()))


def origin_text(item: Answer) -> str:
    return f"from {item['origin']}" if "origin" in item else ""


def print_verdict(console: Console, verdict: Answer) -> None:
    console.print(headline_of_verdict(verdict).append(f" by {describe_deciders(verdict)}", style="not bold"))
    print_table(console, verdict_rows(verdict))
    print_approval_of_verdict(console, verdict)


def verdict_rows(verdict: Answer) -> Iterator[tuple[Text, Text]]:
    for item in verdict["violations"]:
        # Severities of later versions are among the violations because they block.
        words, style = EFFECT_TEXTS.get(item.get("severity"), EFFECT_TEXTS["block"])
        yield Text(words, style=style), violation_text(item)
    for item in verdict.get("warnings", ()):
        yield Text("  warns", style="yellow"), violation_text(item)
    for item in verdict.get("dryrunViolations", ()):
        yield Text("  dry run", style="dim"), violation_text(item)
    for key in verdict.get("ignoredContext", ()):
        hint = f"; did you mean {key['closest']}?" if "closest" in key else ""
        yield Text("  ignored", style="dim"), Text(to_printable(f"{key['name']}, which no guardrail knows{hint}"))


def headline_of_verdict(verdict: Answer) -> Text:
    if verdict["allowed"] is True:
        return Text("Allowed", style="bold green")
    if verdict.get("approvalRequired"):
        return Text("Approval required", style="bold magenta")
    denied = verdict.get("approval", {}).get("status") == "denied"
    return Text("Denied" if denied else "Blocked", style="bold red")


def print_approval_of_verdict(console: Console, verdict: Answer) -> None:
    """Print which approval lets the action through or is missing, and what to do next."""
    approval = verdict.get("approval")
    if approval is None:
        return
    identifier, status = approval["id"], approval.get("status", "")
    said = f": {to_printable(approval['comment'])}" if approval.get("comment") else ""
    console.print(f"Approval {to_printable(identifier)} is {status}{said}", soft_wrap=True)
    if status == "pending":
        # Not with the token of this command: nobody decides on a request of their own.
        deciding = "Have another agent, with the permission approve, grant it"
        command = approval.get("instructions") or f"cstp approvals grant {identifier} --token TOKEN"
        console.print(
            f"{deciding} until {seconds_of(approval.get('expiresAt', ''))}, then repeat this:", soft_wrap=True
        )
        console.print(f"  {to_printable(command)}", soft_wrap=True)


def describe_deciders(verdict: Answer) -> str:
    """Return the deciders of a verdict: all guardrails, the number of those that block, or federation."""
    violations = verdict["violations"]
    blocking = sum(item["guardrailId"] not in (QUORUM_GUARDRAIL, UNREACHABLE_GUARDRAIL) for item in violations)
    if violations and not blocking:
        # No guardrail blocks it, but peers do not allow it.
        return "federation"
    some = f"{blocking} of " if blocking else ""
    return f"{some}{count_noun(verdict.get('evaluated', 0), 'guardrail')}"


def violation_text(item: Answer) -> Text:
    whose = f"{item['agent']}/" if "agent" in item else ""
    text = Text(to_printable(f"{whose}{item['guardrailId']}: {item['message']}"))
    if item.get("suggestion"):
        text.append(f"\n{item['suggestion']}", style="italic")
    return text


def print_check_answer(console: Console, answer: Answer) -> None:
    print_verdict(console, answer)
    print_votes(console, answer)
    print_responses(console, answer.get("responses", ()))


def print_votes(console: Console, answer: Answer) -> None:
    quorum = answer.get("quorum")
    if quorum is None:
        return
    console.print(f"{quorum['allowing']} of {len(quorum['votes'])} required peers allow it, {quorum['needed']} must")
    for vote in quorum["votes"]:
        how, style = ("for", "green") if vote["allow"] else ("against", "red")
        console.print(Text(f"  {to_printable(vote['agent'])} votes ").append(how, style=style))


def print_responses(console: Console, found: Sequence[Answer]) -> None:
    def row(item: Answer) -> tuple[str | Text, ...]:
        status = item.get("status", "")
        shown = Text(status.replace("_", " "), style="" if status == "answered" else "red")
        return f"  {to_printable(item['agent'])}", shown, response_text(item)

    print_table(console, map(row, found), "Peers")


def response_text(item: Answer) -> Text:
    """Return a summary of a peer's response with its latency."""
    parts = []
    if (status := item.get("guardrailStatus")) is not None:
        blocking = [violation["guardrailId"] for violation in status["violations"]]
        verb = "needs approval" if status.get("approvalRequired") else "blocks it"
        if (approval := status.get("approval")) is not None:
            verb += f" ({approval.get('status', '')}: {approval['id']})"
        parts.append("allows it" if status["allowed"] else f"{verb} by {', '.join(blocking)}")
        parts += [f"warns by {violation['guardrailId']}" for violation in status.get("warnings", ())]
    if (found := item.get("decisions")) is not None:
        parts.append(f"found {len(found['decisions'])}")
    if (feedback := item.get("feedback")) is not None:
        parts.append(f"remembers {len(feedback.get('similarDecisions', ()))}")
    if (error := item.get("error")) is not None:
        parts.append(f"{error['reason']}: {error['message']}")
    return Text(to_printable(", ".join([*parts, f"{item.get('latencyMs', 0):.0f} ms"])))


def print_announce_answer(console: Console, answer: Answer) -> None:
    received = f"Received by {answer['respondingAgent']} at {seconds_of(answer.get('receivedAt', ''))}"
    parts = [received, f"correlation id {answer['correlationId']}", revision_text(answer.get("revision", 0))]
    console.print(to_printable(", ".join(filter(None, parts))))
    if (status := answer.get("guardrailStatus")) is not None:
        print_verdict(console, status)
        print_votes(console, status)
    if (code := answer.get("codeContext")) is not None:
        print_code_context(console, code)
    print_table(console, map(similar_row, answer.get("similarDecisions", ())), "Similar decisions")
    print_table(console, map(related_row, answer.get("relatedIntents", ())), "Related intents of other agents")
    print_table(console, (("  -", to_printable(each)) for each in answer.get("suggestions", ())), "Suggestions")
    print_responses(console, answer.get("responses", ()))


def similar_row(item: Answer) -> tuple[str | Text, ...]:
    details = [date_of(item.get("date", "")), item["id"], origin_text(item)]
    entry = entry_text(item["title"], details, item.get("notes", ""))
    return f"  {item['score']:.2f}", outcome_text(item.get("outcome", "")), entry


def related_row(item: Answer) -> tuple[str | Text, ...]:
    blocked, closing = "" if item.get("allowed", True) else "blocked", item.get("closing")
    agent = f"{item['origin']}/{item['agent']}" if "origin" in item else item["agent"]
    when = seconds_of(item.get("receivedAt", ""))
    details = [agent, when, blocked, item["correlationId"], item.get("project", "")]
    state = Text("open") if closing is None else outcome_text(closing.get("outcome", ""))
    return f"  {item['score']:.2f}", state, entry_text(item["intent"], details, (closing or {}).get("notes", ""))


def print_pre_action(console: Console, answer: Answer) -> None:
    print_announce_answer(console, answer["feedback"])
    if (decision := answer.get("decision")) is not None:
        console.print(to_printable(f"Recorded as {decision['id']}: {decision['title']}"))
    else:
        console.print("No decision was recorded.")


def print_code_context(console: Console, code: Answer) -> None:
    """Print the context of code in short: checks, pitfalls, introductions, learnings, omissions."""
    governed = f"governed by {', '.join(code['nodes'])}" if code.get("covered") else "without a node"
    console.print(Text(to_printable(f"Code of {code['project']}, {governed}"), style="bold"))
    print_table(console, code_rows(code))


def code_rows(code: Answer) -> Iterator[tuple[str | Text, str | Text]]:
    for check in code.get("checkItems", ()):
        yield "  check", to_printable(shorten_line(check))
    for label, name in (("  pitfalls", "pitfalls"), ("  introduction", "introduction")):
        for note in code.get(name, ()):
            yield label, entry_text(shorten_line(note["text"]), [f"{note['file']}:{note['line']}"])
    for learning in code.get("pending", ()):
        yield "  pending", entry_text(f"{learning['type']}: {learning['title']}", [learning["id"], *learning["paths"]])
    for reason in code.get("missing", ()):
        yield Text("  missing", style="red"), to_printable(reason)
