"""The texts of answers, for models, in Markdown: the verdict first, then the next step, then the evidence.

The answers have passed `quote_answer`: their strings are identifiers and quotations, except for the sections of nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from cstp_grpc.common.counted_nouns import count_noun
from cstp_grpc.common.quoted_text import MAX_QUOTED_CHARACTERS, OTHERS_NOTE
from cstp_grpc.common.unicode_text import cut_line

JsonObject = Mapping[str, Any]

MAX_SECTION_CHARACTERS: Final = 4000
"""Maximum length of a section of all nodes in the text of an announcement. Chosen: about 1000 tokens, so that hosts,
which cut long answers at their ends, show all sections; code_context has the rest.
"""
MAX_LISTED: Final = 20
"""Maximum number of items in a list. Chosen: a screen of them."""
LIST_MARKERS: Final = ("- ", "* ", "+ ")
PENDING_HEADING: Final = "## Pending Learnings\n"
"""The start of the unreviewed learnings on the page of a path."""

ALLOWED = "ALLOWED"
ALLOWED_WITH_WARNINGS = "ALLOWED, with warnings"
NEEDS_APPROVAL = "NOT ALLOWED without approval. Ask a person, and act only once they have approved."
BLOCKED = "BLOCKED. Do not do this; satisfy what blocks it first, or choose another way."
NO_VERDICT = "NO VERDICT. The action was not checked; ask a person before you act."
HEADLINES: Final = {
    "allowed": ALLOWED,
    "approval required": NEEDS_APPROVAL,
    "blocked": BLOCKED,
    "no verdict": NO_VERDICT,
}
"""The first line of a text by the verdict in the structured content."""


def render_announcement(response: JsonObject) -> str:
    return join_sections(
        [
            render_verdict(response.get("guardrailStatus")),
            render_items("Suggestions", response["suggestions"], note=OTHERS_NOTE),
            render_guarded_code(response.get("codeContext")),
            render_items("Similar decisions", map(describe_decision, response["similarDecisions"]), note=OTHERS_NOTE),
            render_items(
                "Intents of other agents", map(describe_related, response["relatedIntents"]), note=OTHERS_NOTE
            ),
            f"correlationId: {response['correlationId']} (revision {response['revision']})",
        ]
    )


def render_search(response: JsonObject) -> str:
    found = response["decisions"]
    if not found:
        return "No decision resembles this. That nothing is on record is not evidence that it is safe."
    return render_items(count_noun(len(found), "decision"), map(describe_decision, found), note=OTHERS_NOTE, most=50)


def render_recorded_decision(response: JsonObject) -> str:
    decision = response["decision"]
    return f"Recorded as {decision['id']}: {decision['title']}. Review it with review_decision."


def render_reviewed_decision(response: JsonObject) -> str:
    decision = response["decision"]
    return f"Reviewed {decision['id']} as {decision.get('outcome', 'unknown')}: {decision['title']}."


def render_recorded_thought(response: JsonObject) -> str:
    thought = response["thought"]
    return f"Recorded as {thought['id']}, {thought['visibility']}."


def render_session_context(response: JsonObject) -> str:
    markdown: str = response["markdown"]
    return markdown


def render_code_context(response: JsonObject) -> str:
    if not response["covered"]:
        return "No AGENTS.md or CLAUDE.md covers this path."
    left_out = [f"{each['section']} of {each['file']} ({each['tokens']} tokens)" for each in response["leftOut"]]
    return join_sections(
        [
            # The page follows the protocol's format, which has no place for a note.
            response["markdown"].replace(PENDING_HEADING, f"{PENDING_HEADING}\n{OTHERS_NOTE}\n"),
            render_items("Left out by maxTokens", left_out),
            render_items(
                "Reported and not yet reviewed, so it may be wrong", list_pending(response["pending"]), note=OTHERS_NOTE
            ),
        ]
    )


def render_learning(response: JsonObject) -> str:
    learning = response["learning"]
    return f"Filed as {learning['id']} for review: {learning['title']}."


def render_verdict(verdict: JsonObject | None) -> str:
    """Return the text of a verdict; `verdict` is a GuardrailStatus or a CheckGuardrailsResponse, or None."""
    if verdict is None:
        return NO_VERDICT
    missing = [
        f"{each['name']} ({each['type']}): {each.get('description', '')}".removesuffix(": ")
        for violation in verdict["violations"]
        for each in violation["missingInputs"]
    ]
    ignored = [
        each["name"] + (f" (did you mean {each['closest']}?)" if "closest" in each else "")
        for each in verdict["ignoredContext"]
    ]
    return join_sections(
        [
            headline_of_verdict(verdict),
            describe_approval(verdict.get("approval")),
            render_items("Blocked by", map(describe_violation, verdict["violations"])),
            render_items("Warnings", map(describe_violation, verdict["warnings"])),
            render_items("Facts that were not given, and can change the verdict", dict.fromkeys(missing)),
            render_items("Facts that were assumed", verdict["assumed"]),
            render_items("Facts that no rule knows", ignored),
        ]
    )


def headline_of_verdict(verdict: JsonObject) -> str:
    word = name_verdict(verdict)
    return ALLOWED_WITH_WARNINGS if word == "allowed" and verdict["warnings"] else HEADLINES[word]


def name_verdict(verdict: JsonObject | None) -> str:
    """Return the key of HEADLINES for a verdict."""
    if verdict is None:
        return "no verdict"
    # Fail closed: violations block even if `allowed` is true.
    if verdict["allowed"] and not verdict["violations"]:
        return "allowed"
    return "approval required" if verdict["approvalRequired"] else "blocked"


def describe_approval(approval: JsonObject | None) -> str:
    """Return one line about the approval request of a verdict; empty without a request."""
    if approval is None:
        return ""
    said = f" What was said: {approval['comment']}" if "comment" in approval else ""
    if approval["status"] != "pending":
        return f"The approval {approval['id']} is {approval['status']}.{said}"
    how = approval.get("instructions") or f"`cstp approvals grant {approval['id']}`"
    return (
        f"The approval {approval['id']} is requested, until {approval['expiresAt']}. A person with the permission"
        f" `approve` decides, for instance by {how}. Once it is granted, ask again"
        " with the same arguments; other ones need another approval."
    )


def describe_violation(violation: JsonObject) -> str:
    line = f"{violation['message']} [{violation['guardrailId']}, {violation.get('severity', 'block')}]"
    if suggestion := violation.get("suggestion"):
        line += f" How to resolve it: {suggestion}"
    return line


def describe_decision(decision: JsonObject) -> str:
    facts = [decision.get("outcome", "outcome unknown"), *([decision["category"]] if "category" in decision else [])]
    if "date" in decision:
        facts.append(decision["date"][:10])
    if "score" in decision:
        facts.append(f"relevance {decision['score']:.2f}")
    if "supersededBy" in decision:
        facts.append(f"superseded by {decision['supersededBy']}")
    lesson = f" Lesson: {decision['notes']}" if decision.get("notes") else ""
    return f"{decision['title']} ({', '.join(facts)}) [{decision['id']}]{lesson}"


def describe_related(intent: JsonObject) -> str:
    closing = intent.get("closing")
    state = "open" if closing is None else f"closed, {closing.get('outcome', 'outcome unknown')}"
    return f"{intent['agent']}: {intent['intent']} ({state}, since {intent['receivedAt']})"


def render_guarded_code(context: JsonObject | None) -> str:
    """Return the notes that govern the paths of an announcement, in the words of the project's own files."""
    if context is None:
        return ""
    parts = [
        cut_section(render_list(name, map(render_note, context[member])))
        for name, member in (
            ("Contracts of the code", "contracts"),
            ("Pitfalls", "pitfalls"),
            ("Boundaries", "boundaries"),
            ("Checks to make first", "checks"),
            ("Introduction", "introduction"),
        )
    ]
    others: dict[str, list[str]] = {}
    for note in context["others"]:
        others.setdefault(cut_line(note["section"], MAX_QUOTED_CHARACTERS), []).append(render_note(note))
    parts.append(cut_section(join_sections(render_list(name, notes) for name, notes in others.items())))
    return join_sections(
        [
            *parts,
            render_items(
                "Reported about the code and not yet reviewed", list_pending(context["pending"]), note=OTHERS_NOTE
            ),
            render_items("Could not be read", context["missing"]),
        ]
    )


def list_pending(learnings: Iterable[JsonObject]) -> Iterable[str]:
    """Return a line for each unreviewed learning; a learning that several agents reported appears once."""
    lines: dict[str, str] = {}
    for each in learnings:
        lines.setdefault(f"{each['type']}: {each['title']}".casefold(), f"{each['type']}: {each['title']}")
    return lines.values()


def render_items(heading: str, items: Iterable[str], *, note: str = "", most: int = MAX_LISTED) -> str:
    """Return a Markdown list under a heading, or an empty text without items."""
    return render_list(heading, (f"- {indent_lines(item)}" for item in items), note=note, most=most)


def render_note(note: JsonObject) -> str:
    """Return a section of a node, which may itself be a list, as items of a list, with its path."""
    text = f"{note['text'].strip()} [{note['file']}:{note['line']}]"
    return text if text.startswith(LIST_MARKERS) else f"- {indent_lines(text)}"


def render_list(heading: str, lines: Iterable[str], *, note: str = "", most: int = MAX_LISTED) -> str:
    """Return items with list markers under a heading, or an empty text without items."""
    listed = list(lines)
    if not listed:
        return ""
    more = [f"- and {len(listed) - most} more"] if len(listed) > most else []
    return "\n".join([f"## {heading}", *([note] if note else []), *listed[:most], *more])


def cut_section(text: str) -> str:
    """Return a section with at most MAX_SECTION_CHARACTERS, cut between two lines if possible."""
    if len(text) <= MAX_SECTION_CHARACTERS:
        return text
    cut = text[:MAX_SECTION_CHARACTERS]
    return f"{cut.rpartition(chr(10))[0] or cut}\n- … and more: call code_context for all of it."


def indent_lines(text: str) -> str:
    """Indent all lines but the first, so that they belong to the item of a list."""
    return text.replace("\n", "\n  ")


def join_sections(sections: Iterable[str]) -> str:
    """Return sections with an empty line between them, without the empty ones."""
    return "\n\n".join(filter(None, sections))
