"""Suggests next steps on an announcement: what its feedback teaches, each with what it rests on."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import islice, takewhile

from cstp_grpc.decisions.model import Decision, Match
from cstp_grpc.decisions.store import (
    MAX_BACKGROUND,
    NO_BACKGROUND,
    DecisionBackground,
    NeededBackground,
)
from cstp_grpc.enums import DecisionStatus, Outcome
from cstp_grpc.guardrails.model import UNKNOWN_ACTION, Verdict, Violation
from cstp_grpc.intents.conditions import TROUBLED, can_compare, describe_outcome, distinguishing_conditions
from cstp_grpc.intents.model import IntentKey
from cstp_grpc.intents.related_intents import RelatedIntent

MAX_SUGGESTIONS = 5
MAX_QUOTED = 400
"""Characters of a lesson, a check or an intent that a suggestion quotes."""
FIRST_CHECKS = 2
"""How many checks come before lessons: the code's own list must not keep what went wrong from being told."""
MAX_READ_PRECEDENTS = 2
"""How many own precedents without a lesson are read for what they say."""
MAX_INTENTS = 2
"""How many related intents are suggested to be looked at; the answer lists them all."""

CLOSING_VERBS = {
    Outcome.FAILURE: "failed with",
    Outcome.PARTIAL: "succeeded only in part with",
    Outcome.ABANDONED: "gave up",
}


DECISION_SECTION = re.compile(
    r"^#{1,6}[ \t]+decision(?:[ \t]+outcome)?(?:[ \t]*:)?[ \t]*$\s*^(\S[^\n]*(?:\n[^\n#*+-][^\n]*)*)", re.I | re.M
)
"""The section of a decision record that says what was decided, as Nygard's and MADR's templates name it."""
LIST_ITEM = re.compile(r"[ \t]*(?:[*+-]|\d{1,3}[.)])[ \t]+(\S.*)")
MINUTES_AN_HOUR = 60


class SuggestionKind(StrEnum):
    """What a suggestion is drawn from."""

    GUARDRAIL = "guardrail"
    RELATED_INTENT = "related_intent"
    CONFIDENCE = "confidence"
    CHECK = "check"
    SUPERSEDED = "superseded"
    LESSON = "lesson"
    CONDITION = "condition"
    FAILURE = "failure"
    PRECEDENT = "precedent"


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A suggestion with what it rests on.

    `relevance` is the score of the most similar decision or intent, None if it rests on neither; `outcome` is that of
    the decisions or of the intent, None if they have none or different ones.
    """

    text: str
    kind: SuggestionKind
    decision_ids: tuple[str, ...] = ()
    guardrail_id: str | None = None
    intent: IntentKey | None = None
    relevance: float | None = None
    outcome: Outcome | None = None


@dataclass(frozen=True, slots=True)
class SuggestionBars:
    """The least relevance of what is suggested, 0 to 1; listing it needs less.

    `teaching` is for what has a lesson, `bare` for a failure about which nobody noted anything, `related` for intents
    of others.
    """

    teaching: float
    bare: float
    related: float

    @classmethod
    def above(cls, min_score: float, min_related_score: float) -> SuggestionBars:
        """Return the bars for decisions and intents that are listed from these scores on."""
        return cls(
            raise_bar(min_score, TEACHING_SHARE),
            raise_bar(min_score, BARE_SHARE),
            raise_bar(min_related_score, RELATED_SHARE),
        )


def raise_bar(score: float, share: float) -> float:
    """Return the score that is a share of the way from another one to 1."""
    return score + share * (1 - score)


TEACHING_SHARE = 0.25
"""How far the bar for lessons is from the least score that is listed to 1. Chosen: with the default of 0.35 it is 0.51,
from which on a decision is more likely relevant than not, as scores are calibrated."""
BARE_SHARE = 0.8
"""Chosen: what only shares some words with the intent stays below."""
RELATED_SHARE = 0.1
"""Likewise for intents of others, whose scores are similarities."""


@dataclass(frozen=True, slots=True)
class SuggestionSources:
    """What suggestions are drawn from.

    `similar` are the matches, the most relevant first, `checks` those not made yet, `related` intents of others,
    `warning` is about the agent's stated confidence, `reader` reads the decisions at the instant `now`.
    """

    similar: Sequence[Match]
    verdict: Verdict
    now: datetime
    reader: str
    bars: SuggestionBars
    checks: Sequence[str] = ()
    related: Sequence[RelatedIntent] = ()
    warning: str | None = None
    text: str = ""
    """The announced intent and its context."""
    background: DecisionBackground = NO_BACKGROUND
    """What `find_needed_background` asked for."""


def build_suggestions(sources: SuggestionSources) -> list[Suggestion]:
    """Return at most five suggestions, the most useful first; none if there is nothing worth saying.

    The order: how to satisfy guardrails that block; open intents of others; a confidence that is far from the record;
    the first two checks not made yet; what superseded the best matches; lessons of failures and of partial successes;
    conditions that failures had and successes had not; how to satisfy guardrails that warn; intents of others that
    failed; very similar failures without a lesson; the other checks; lessons of successes; precedents of the reader. No
    decision is in two of them, and no text twice.
    """
    return take_distinct(rank_suggestions(sources), MAX_SUGGESTIONS)


def find_needed_background(similar: Sequence[Match], reader: str, bars: SuggestionBars) -> NeededBackground:
    """Return of which decisions suggestions need more than a search reads; usually of none.

    These are superseded ones whose successor is not among the matches; the best own precedents without a lesson, for
    their contexts; and likewise own ones among those that are compared.
    """
    teaching = [match.decision for match in similar if match.score >= bars.teaching]
    own = [decision for decision in teaching if decision.agent == reader]
    precedents = [decision for decision in own if is_open_precedent(decision) and not decision.notes]
    compared = [decision for decision in own if decision.outcome is not None] if can_compare(teaching) else []
    listed = {match.decision.id for match in similar}
    superseded = [
        match.decision.id
        for match in similar
        if match.score >= bars.teaching and match.superseded_by is not None and match.superseded_by not in listed
    ]
    contexts = [decision.id for decision in (*precedents[:MAX_READ_PRECEDENTS], *compared)]
    return NeededBackground(tuple(contexts[:MAX_BACKGROUND]), tuple(superseded[:MAX_BACKGROUND]))


def rank_suggestions(sources: SuggestionSources) -> Iterator[Suggestion]:
    """Yield every suggestion, the most useful first."""
    teaching = [
        with_context(match, sources.background) for match in sources.similar if match.score >= sources.bars.teaching
    ]
    troubled = [match for match in teaching if match.decision.outcome in TROUBLED]
    succeeded = [match for match in teaching if match.decision.outcome is Outcome.SUCCESS]
    related = [item for item in sources.related if item.score >= sources.bars.related]
    checks = [
        Suggestion(f"Check: {shorten_text(check)}", SuggestionKind.CHECK) for check in sources.checks if check.strip()
    ]
    yield from suggest_remedies(sources.verdict.violations)
    yield from suggest_open_intents(related, sources.now)
    if sources.warning:
        yield Suggestion(sources.warning, SuggestionKind.CONFIDENCE)
    yield from checks[:FIRST_CHECKS]
    yield from suggest_successors(teaching, sources)
    yield from suggest_lessons(troubled, sources.similar)
    yield from suggest_conditions(sources, teaching)
    # That nothing was stated is no reason to act differently, and would stand in the place of what is.
    yield from suggest_remedies(each for each in sources.verdict.warnings if each.code != UNKNOWN_ACTION)
    yield from suggest_failed_intents(related, sources.now)
    yield from suggest_bare_failures(troubled, sources.bars.bare)
    yield from checks[FIRST_CHECKS:]
    yield from suggest_lessons(succeeded, sources.similar)
    yield from suggest_precedents(teaching, sources.reader)


def take_distinct(suggestions: Iterable[Suggestion], count: int) -> list[Suggestion]:
    """Return the first `count` suggestions, without repeated texts and without a second one on the same decision."""
    chosen: dict[str, Suggestion] = {}
    decisions: set[str] = set()
    for suggestion in suggestions:
        # The first decision is the one that the suggestion is about. Conditions are about all of them together.
        about = suggestion.decision_ids[:1] if suggestion.kind is not SuggestionKind.CONDITION else ()
        if decisions.isdisjoint(about):
            decisions.update(about)
            chosen.setdefault(" ".join(suggestion.text.split()).casefold(), suggestion)
        if len(chosen) == count:
            break
    return list(chosen.values())


def suggest_remedies(violations: Iterable[Violation]) -> Iterator[Suggestion]:
    """Yield how to satisfy guardrails: what their authors suggest, or the inputs that they lack."""
    for violation in violations:
        text = (violation.suggestion or "").strip()
        if not text and violation.missing_inputs:
            names = ", ".join(each.name for each in violation.missing_inputs)
            text = f"State {names} in the metadata: the guardrail {violation.name} reads it"
        if text:
            yield Suggestion(text, SuggestionKind.GUARDRAIL, guardrail_id=violation.guardrail_id)


def suggest_open_intents(related: Iterable[RelatedIntent], now: datetime) -> Iterator[Suggestion]:
    """Yield that others are about to do the same, unless guardrails block them."""
    found = (item for item in related if item.intent.closing is None and item.shared.allowed is not False)
    for item in islice(found, MAX_INTENTS):
        age = describe_age(now - item.intent.received_at)
        text = (
            f"{item.intent.agent} announced this {age} and has not closed it: {shorten_text(item.intent.intent or '')}"
        )
        yield Suggestion(text, SuggestionKind.RELATED_INTENT, intent=item.intent.key, relevance=item.score)


def suggest_failed_intents(related: Iterable[RelatedIntent], now: datetime) -> Iterator[Suggestion]:
    """Yield what others did not succeed with lately."""
    for item in related:
        closing = item.intent.closing
        if closing is not None and closing.outcome in CLOSING_VERBS:
            age = describe_age(now - closing.closed_at)
            text = f"{item.intent.agent} {CLOSING_VERBS[closing.outcome]} this {age}: {item.intent.intent or ''}"
            text = add_lesson(shorten_text(text), shorten_text(closing.notes or ""))
            yield Suggestion(
                text,
                SuggestionKind.RELATED_INTENT,
                intent=item.intent.key,
                relevance=item.score,
                outcome=closing.outcome,
            )


def suggest_successors(matches: Iterable[Match], sources: SuggestionSources) -> Iterator[Suggestion]:
    """Yield of superseded decisions by what they were superseded, as far as the reader may know."""
    listed = {match.decision.id: match.decision for match in sources.similar}
    for match in matches:
        decision = match.decision
        if decision.status is not DecisionStatus.SUPERSEDED:
            continue
        new = listed.get(match.superseded_by or "") or sources.background.successors.get(decision.id)
        by = f"by {quote_title(new)}" if new else "; look for what replaced it before you rely on it"
        text = add_lesson(f"{quote_title(decision)} was superseded{' ' if new else ''}{by}", lesson_text(decision))
        ids = (decision.id, new.id) if new else (decision.id,)
        yield Suggestion(
            text, SuggestionKind.SUPERSEDED, ids, relevance=relevance_of(match), outcome=new.outcome if new else None
        )


def suggest_lessons(matches: Iterable[Match], listed: Sequence[Match]) -> Iterator[Suggestion]:
    """Yield the lessons of decisions with an outcome; `listed` are all similar ones."""
    for match in matches:
        decision = match.decision
        if decision.outcome is not None and (lesson := lesson_text(decision)):
            sentence = f"{describe_outcome(match, decision.outcome, listed)}: {plain_title(decision)}"
            yield Suggestion(
                add_lesson(sentence, lesson),
                SuggestionKind.LESSON,
                (decision.id,),
                relevance=relevance_of(match),
                outcome=decision.outcome,
            )


def suggest_conditions(sources: SuggestionSources, teaching: Sequence[Match]) -> Iterator[Suggestion]:
    """Yield what distinguishes the failures among the matches from the successes."""
    decisions = [match.decision for match in teaching]
    for condition in distinguishing_conditions(decisions, sources.text, sources.reader):
        having, otherwise = ("failed", "succeeded") if condition.failed else ("succeeded", "failed")
        text = (
            f"{len(condition.decisions)} of the {condition.of} similar decisions that {having} {condition.text}; "
            f"none of the {condition.against} that {otherwise} {'does' if condition.mentions else 'has it'}"
        )
        ids = tuple(decision.id for decision in condition.decisions)
        relevance = max(relevance_of(match) for match in teaching if match.decision.id in ids)
        outcomes = {decision.outcome for decision in condition.decisions}
        yield Suggestion(
            text,
            SuggestionKind.CONDITION,
            ids,
            relevance=relevance,
            outcome=outcomes.pop() if len(outcomes) == 1 else None,
        )


def suggest_bare_failures(matches: Iterable[Match], bar: float) -> Iterator[Suggestion]:
    """Yield failures about which nobody noted anything, if they are very similar."""
    for match in matches:
        decision = match.decision
        if match.score >= bar and decision.outcome is Outcome.FAILURE and not lesson_text(decision):
            text = (
                f"A very similar decision failed: {plain_title(decision)}. No lesson is noted; {decision.agent} made it"
            )
            yield Suggestion(
                text, SuggestionKind.FAILURE, (decision.id,), relevance=relevance_of(match), outcome=decision.outcome
            )


def suggest_precedents(matches: Iterable[Match], reader: str) -> Iterator[Suggestion]:
    """Yield what the reader decided before and has not reviewed, if the record says more than its title."""
    for match in matches:
        decision = match.decision
        teaching = lesson_text(decision) or decision_statement(decision.context or "")
        if is_open_precedent(decision) and decision.agent == reader and teaching:
            text = f"You have decided on {quote_title(decision)}: {teaching}"
            yield Suggestion(text, SuggestionKind.PRECEDENT, (decision.id,), relevance=relevance_of(match))


def is_open_precedent(decision: Decision) -> bool:
    """Return True if a decision was taken and nobody knows yet how it turned out."""
    return decision.status is DecisionStatus.DECIDED and decision.outcome is None


def with_context(match: Match, background: DecisionBackground) -> Match:
    """Return a match with the context of its decision, if that was read."""
    context = background.contexts.get(match.decision.id)
    return match if context is None else replace(match, decision=replace(match.decision, context=context))


def decision_statement(context: str) -> str:
    """Return the first paragraph or item below a heading such as `## Decision`, shortened; empty if there is none.

    A paragraph that ends with a colon is followed by the items of its list.
    """
    match = DECISION_SECTION.search(context)
    if match is None:
        return ""
    statement = match[1].strip().lstrip("*-+ ")
    if statement.endswith(":"):
        items = takewhile(
            bool, (LIST_ITEM.fullmatch(line) for line in filter(None, context[match.end() :].split("\n")))
        )
        statement = f"{statement} {'; '.join(item[1].rstrip() for item in items if item)}"
    return shorten_text(statement)


def lesson_text(decision: Decision) -> str:
    """Return a decision's notes on one line, shortened; empty if it has none."""
    return shorten_text(decision.notes or "")


def plain_title(decision: Decision) -> str:
    """Return a decision's title without a full stop at its end."""
    return decision.title.strip().rstrip(".")


def quote_title(decision: Decision) -> str:
    """Return a decision's title in quotation marks."""
    return f'"{plain_title(decision)}"'


def add_lesson(sentence: str, lesson: str) -> str:
    """Return a sentence with a lesson behind it, if there is one."""
    return f"{sentence}. Lesson: {lesson}" if lesson else sentence


def relevance_of(match: Match) -> float:
    """Return the score of a match from 0 to 1."""
    return min(max(match.score, 0.0), 1.0)


def shorten_text(text: str) -> str:
    """Return a text on one line, at most `MAX_QUOTED` characters long."""
    text = " ".join(text.split())
    return text if len(text) <= MAX_QUOTED else text[: MAX_QUOTED - 1].rstrip() + "…"


def describe_age(age: timedelta) -> str:
    """Return how long ago something was, in whole minutes or hours."""
    minutes = int(age.total_seconds() // 60)
    if minutes < 1:
        return "just now"
    number, unit = (minutes, "minute") if minutes < MINUTES_AN_HOUR else (minutes // MINUTES_AN_HOUR, "hour")
    return f"{number} {unit}{'' if number == 1 else 's'} ago"
