"""Session contexts as Markdown, which a model reads when it starts.

Texts of agents are quotations below a note. Rules and sections of nodes instruct; sections keep their lines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Final

from cstp_grpc.common.quoted_text import MAX_QUOTED_CHARACTERS, OTHERS_NOTE, quote_name, quote_text
from cstp_grpc.common.unicode_text import cut_line, replace_invisible
from cstp_grpc.contract.enums import Enforcement
from cstp_grpc.core.decisions.model import Decision
from cstp_grpc.core.guardrails.rules_in_force import ListedGuardrail, ListedInput
from cstp_grpc.core.intents.related_intents import RelatedIntent
from cstp_grpc.modules.session_context import model

MAX_NOTE_CHARACTERS: Final = 800
"""Maximum length of a section of a node, 200 tokens; resolving the context of the path gives all of it."""
MAX_SUMMARY_QUOTATIONS: Final = 3
"""Quotations of a summary, some 250 tokens; GetDecision returns all of them."""
quote_label: Final = partial(quote_name, limit=60)
"""Quotes a name, which is short since the frame of a page has to fit into the smallest budget."""
MAX_MISSING: Final = 3
"""Maximum number of lines on unreadable parts, for the same reason."""

HEADINGS: Final[Mapping[model.SessionContextPart, str]] = {
    model.SessionContextPart.REVIEWS_DUE: "Your decisions whose outcome is to be reviewed",
    model.SessionContextPart.FAILURES: "Your decisions that failed",
    model.SessionContextPart.RELATED_INTENTS: "Intents of other agents",
    model.SessionContextPart.GUARDRAILS: "Rules in force",
    model.SessionContextPart.LESSONS: "Lessons by category",
    model.SessionContextPart.SUMMARIES: "Summaries of old decisions",
    model.SessionContextPart.CODE: "Notes and rules for the code",
    model.SessionContextPart.CALIBRATION: "Your confidence record",
    model.SessionContextPart.INPUTS: "Facts that rules read",
    model.SessionContextPart.RECENT: "Your recent decisions",
}
NOTED_PARTS: Final = frozenset(
    {
        model.SessionContextPart.FAILURES,
        model.SessionContextPart.RELATED_INTENTS,
        model.SessionContextPart.LESSONS,
        model.SessionContextPart.SUMMARIES,
        model.SessionContextPart.RECENT,
    }
)
"""The parts with texts of other agents: the lesson of a decision may be that of another reviewer."""
PART_WORDS: Final[Mapping[model.SessionContextPart, str]] = {
    model.SessionContextPart.REVIEWS_DUE: "due reviews",
    model.SessionContextPart.RELATED_INTENTS: "intents",
    model.SessionContextPart.GUARDRAILS: "rules",
    model.SessionContextPart.CODE: "notes on code",
    model.SessionContextPart.INPUTS: "facts",
    model.SessionContextPart.RECENT: "recent decisions",
}
"""Names of parts in the line on omissions, for parts whose values are not plain words."""

PartTexts = Mapping[model.SessionContextPart, Sequence[str]]


def render_parts(context: model.SessionContext) -> PartTexts:
    return {part: [RENDERERS[part](item) for item in context.items_of(part)] for part in model.SessionContextPart}


def render_page(context: model.SessionContext, parts: PartTexts, counts: Mapping[model.SessionContextPart, int]) -> str:
    """Return the page with the first items of each part, and a line on omitted items."""
    blocks = [f"# Session context of {quote_label(context.agent)}, {format_date(context.read_at)}"]
    for part in model.SessionContextPart:
        if kept := parts[part][: counts[part]]:
            note = [OTHERS_NOTE] if part in NOTED_PARTS else []
            blocks.append("\n".join([f"## {HEADINGS[part]}", *note, *kept]))
    blocks += describe_missing(context.missing)
    blocks += describe_omissions(context.omissions(counts))
    if len(blocks) == 1:
        blocks.append("Nothing is on record yet.")
    return "\n\n".join(blocks) + "\n"


def describe_missing(missing: Sequence[str]) -> Iterator[str]:
    if missing:
        more = [f"and {len(missing) - MAX_MISSING} more"] if len(missing) > MAX_MISSING else []
        shown = map(quote_label, missing[:MAX_MISSING])
        yield f"Could not be read: {'; '.join([*shown, *more])}."


def describe_omissions(left_out: Sequence[model.OmittedPart]) -> Iterator[str]:
    if left_out:
        yield f"Left out: {', '.join(map(describe_omission, left_out))}."


def describe_omission(omitted: model.OmittedPart) -> str:
    word = PART_WORDS.get(omitted.part, omitted.part.value)
    if not omitted.count:
        return f"further {word}"
    return f"{omitted.count}{' or more' if omitted.more else ''} {word}"


def describe_due_review(item: Decision) -> str:
    due = "" if item.review_by is None else f"due {format_date(item.review_by)}, "
    return f"- {quote_text(item.title)} ({due}{describe_origin(item)})"


def describe_decided(item: Decision) -> str:
    outcome = "" if item.outcome is None else f"{item.outcome}, "
    lesson = f" Lesson: {quote_text(item.notes)}" if item.notes else ""
    return f"- {quote_text(item.title)} ({outcome}{describe_origin(item)}){lesson}"


def describe_lesson(item: Decision) -> str:
    category = quote_label(item.category) if item.category else "no category"
    outcome = item.outcome or "no outcome"
    return f"- [{category}] {quote_text(item.notes or '')} ({outcome}: {quote_text(item.title)}, {item.id})"


def describe_summary(item: Decision) -> str:
    """Return the title of a summary, with a line for its outcomes and for each quotation."""
    lines = (f"  - {quote_text(line.removeprefix('- '))}" for line in summary_lines(item))
    return "\n".join([f"- {quote_text(item.title)} ({item.id})", *lines])


def summary_lines(item: Decision) -> list[str]:
    """Return the line on the outcomes, and the first quotations."""
    lines = (item.notes or "").splitlines()[: 1 + MAX_SUMMARY_QUOTATIONS]
    return [cut_line(line, MAX_QUOTED_CHARACTERS) for line in lines]


def describe_origin(item: Decision) -> str:
    category = "" if item.category is None else f"{quote_label(item.category)}, "
    confidence = "" if item.confidence is None else f"confidence {item.confidence:.2g}, "
    return f"{category}decided {format_date(item.date)}, {confidence}{item.id}"


def describe_guardrail(item: ListedGuardrail) -> str:
    """Return one line about a rule: its severity, its message and the facts that it reads."""
    rule = item.guardrail
    tried = " (dry run)" if rule.enforcement is Enforcement.DRYRUN else ""
    # Without the values of expressions, which only an action has.
    message = rule.message if rule.message_template is None else rule.message_template.outline
    reads = f" (reads {', '.join(map(quote_label, item.inputs))})" if item.inputs else ""
    return f"- {rule.severity}{tried} `{quote_label(rule.id)}`: {cut_line(message, MAX_QUOTED_CHARACTERS)}{reads}"


def describe_input(item: ListedInput) -> str:
    """Return one line about a fact that rules read."""
    declared = item.declared
    required = ", required" if declared.is_required else ""
    about = f": {cut_line(declared.description, MAX_QUOTED_CHARACTERS)}" if declared.description else ""
    values = f" One of {cut_line(', '.join(declared.values), MAX_QUOTED_CHARACTERS)}." if declared.values else ""
    return f"- `{quote_label(declared.name)}` ({declared.type}{required}){about}{values}"


def describe_confidence(item: model.ConfidenceMeaning) -> str:
    """Return one line about the confidences in a tenth of the range."""
    kind = "" if item.category is None else f" of the category {quote_label(item.category)}"
    misleading = ": misleading" if item.is_misleading else ""
    return (
        f"- {item.lower:.1f} to {item.lower + 0.1:.1f} has meant {item.success_rate:.2f}"
        f" in {item.count} reviewed decisions{kind}{misleading}"
    )


def describe_intent(item: RelatedIntent) -> str:
    """Return one line about an intent of another agent."""
    intent = item.intent
    state = "open" if intent.closing is None else f"closed as {intent.closing.outcome}"
    blocked = ", blocked by guardrails" if item.shared.allowed is False else ""
    paths = f", on {quote_text(', '.join(intent.paths))}" if intent.paths else ""
    who = f"{quote_label(intent.agent)}, {format_date(intent.received_at)}"
    return f"- {quote_text(intent.intent or '')} ({who}, {state}{blocked}{paths})"


def render_note(item: model.GoverningNote) -> str:
    """Return a section of a node, below a heading with its place."""
    place = f"{item.note.file}:{item.note.line}"
    return f"### {item.section} ({quote_name(place)})\n\n{cut_note(item.note.text)}\n"


RENDERERS: Final[Mapping[model.SessionContextPart, Callable[[Any], str]]] = {
    model.SessionContextPart.REVIEWS_DUE: describe_due_review,
    model.SessionContextPart.FAILURES: describe_decided,
    model.SessionContextPart.RELATED_INTENTS: describe_intent,
    model.SessionContextPart.GUARDRAILS: describe_guardrail,
    model.SessionContextPart.LESSONS: describe_lesson,
    model.SessionContextPart.SUMMARIES: describe_summary,
    model.SessionContextPart.CODE: render_note,
    model.SessionContextPart.CALIBRATION: describe_confidence,
    model.SessionContextPart.INPUTS: describe_input,
    model.SessionContextPart.RECENT: describe_decided,
}


def cut_note(text: str) -> str:
    """Return the text of a node, cut between two lines if there are any."""
    text = replace_invisible(text).strip()
    if len(text) <= MAX_NOTE_CHARACTERS:
        return text
    cut = text[: MAX_NOTE_CHARACTERS - 1]
    return f"{cut.rpartition(chr(10))[0] or cut}…"


def format_date(instant: datetime) -> str:
    return instant.strftime("%Y-%m-%d")
