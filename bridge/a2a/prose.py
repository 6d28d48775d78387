"""Results as a person or a model reads them: plain text that stays what it is where it is shown as Markdown.

Every text begins with a line that says the most important. What people wrote is kept to one line each, with the signs
escaped that Markdown would make links, images, code or HTML of.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

Result = Mapping[str, Any]

MAX_JSON: Final = 20_000
"""How many characters of JSON a text holds."""
MAX_LINE: Final = 1_000
"""How many characters of what somebody wrote are shown."""
MARKUP: Final = re.compile(r"[\\`\[\]<]")


def text_of(method: str, result: Result) -> str:
    """Return the text for the result of a method."""
    writer = WRITERS.get(method)
    return "\n".join(writer(result) if writer else of_any(method, result))


def of_announcement(result: Result) -> list[str]:
    """Return the lines on an announced intent: the verdict first."""
    verdict = result.get("guardrailStatus")
    decisions = result["similarDecisions"]
    return [
        verdict_line("this intent", verdict) if verdict else "Received. Guardrails give no verdict here.",
        *(judgements(verdict) if verdict else ()),
        *section("Similar decisions", [decision_lines(item) for item in decisions]),
        *section("Suggestions", [[one_line(item)] for item in result["suggestions"]]),
        "",
        f"Correlation id: {one_line(result['correlationId'])}{revision_suffix(result['revision'])}",
    ]


def revision_suffix(revision: int) -> str:
    """Return which revision of an intent was announced; empty for the first."""
    return f", revision {revision}" if revision > 1 else ""


def of_check(result: Result) -> list[str]:
    """Return the lines on a checked action."""
    return [verdict_line("this action", result), *judgements(result)]


def of_query(result: Result) -> list[str]:
    """Return the lines on found decisions."""
    decisions = result["decisions"]
    query = f"“{one_line(result['query'])}”"
    if not decisions:
        return [f"No past decision resembles {query}."]
    return [
        f"{counted(len(decisions), 'past decision')} found for {query}.",
        *section("Decisions", [decision_lines(item) for item in decisions]),
    ]


def of_any(method: str, result: Result) -> list[str]:
    """Return a heading and the JSON of a result, indented so that Markdown leaves it alone."""
    content = json.dumps(result, ensure_ascii=False, indent=2)
    lines = [f"{method} answered.", "", *(f"    {line}" for line in content[:MAX_JSON].splitlines())]
    if len(content) > MAX_JSON:
        lines += ["", f"These are the first {MAX_JSON} of {len(content)} characters; as application/json it is whole."]
    return lines


WRITERS: Final[Mapping[str, Callable[[Result], list[str]]]] = {
    "cstp.announceIntent": of_announcement,
    "cstp.queryDecisions": of_query,
    "cstp.checkGuardrails": of_check,
}


def verdict_line(what: str, verdict: Result) -> str:
    """Return the verdict of guardrails in a sentence."""
    violations, warnings, evaluated = verdict["violations"], verdict["warnings"], verdict["evaluated"]
    if not verdict["allowed"]:
        number = len(violations)
        blocked = f"{number} of {counted(evaluated, 'guardrail')} block{'s' if number == 1 else ''} {what}"
        return f"Blocked: {blocked}: {messages_of(violations)}"
    allowed = f"Allowed: no guardrail of {evaluated} blocks {what}"
    return f"{allowed}, but mind: {messages_of(warnings)}" if warnings else f"{allowed}."


def messages_of(violations: Iterable[Result]) -> str:
    """Return what some guardrails say, on one line."""
    return "; ".join(one_line(item["message"]) for item in violations)


def judgements(verdict: Result) -> list[str]:
    """Return the lines on what blocks and what warns."""
    return [
        *section("Violations", [violation_lines(item) for item in verdict["violations"]]),
        *section("Warnings", [violation_lines(item) for item in verdict["warnings"]]),
    ]


def violation_lines(violation: Result) -> list[str]:
    """Return the lines on one guardrail that matched."""
    lines = [f"{one_line(violation['name'])}: {one_line(violation['message'])}"]
    if suggestion := violation.get("suggestion"):
        lines.append(f"Suggestion: {one_line(suggestion)}")
    return lines


def decision_lines(decision: Result) -> list[str]:
    """Return the lines on one past decision."""
    facts = [one_line(decision[name]) for name in ("category", "status", "outcome") if decision.get(name)]
    if "date" in decision:
        facts.append(decision["date"][:10])
    facts.append(f"score {1 - decision['distance']:.2f}")
    lines = [f"{one_line(decision['title'])} ({', '.join(facts)})"]
    if notes := decision.get("notes"):
        lines.append(f"Notes: {one_line(notes)}")
    return lines


def section(heading: str, entries: Iterable[list[str]]) -> list[str]:
    """Return a list under a heading, or nothing where it would be empty."""
    lines = [line for first, *more in entries for line in (f"- {first}", *(f"  {item}" for item in more))]
    return ["", f"{heading}:", *lines] if lines else []


def counted(number: int, noun: str) -> str:
    """Return a number of things."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def one_line(text: str) -> str:
    """Return what somebody wrote on one line, not endless, and as text even to Markdown."""
    line = " ".join(text.split())
    line = line if len(line) <= MAX_LINE else line[:MAX_LINE] + "…"
    return MARKUP.sub(lambda sign: f"\\{sign[0]}", line)
