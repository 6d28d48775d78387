"""Suggests next steps on an announcement: the lessons of its feedback, each with its evidence."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from itertools import islice, takewhile

from cstp_grpc.common.counted_nouns import count_noun
from cstp_grpc.common.lazy_dataclass import dataclass, replace
from cstp_grpc.common.unicode_text import truncate_text
from cstp_grpc.contract.enums import DecisionStatus, Outcome
from cstp_grpc.core.decisions.model import Decision, Match
from cstp_grpc.core.decisions.search.search_results import series_of_title
from cstp_grpc.core.decisions.store import MAX_BACKGROUND, NO_BACKGROUND, DecisionBackground, NeededBackground
from cstp_grpc.core.guardrails.inputs import CONFIRMED_CHECKS_KEY
from cstp_grpc.core.guardrails.model import UNKNOWN_ACTION, Verdict, Violation
from cstp_grpc.core.intents.model import Announcement, CodeContext, Suggestion, SuggestionBars, SuggestionKind
from cstp_grpc.core.intents.quoted_lessons import MAX_QUOTED_RECORDS, is_long_lesson
from cstp_grpc.core.intents.related_intents import RelatedIntent

MAX_SUGGESTIONS = 5
MAX_QUOTED = 400
"""Characters of a lesson, a check or an intent that a suggestion quotes."""
FIRST_CHECKS = 2
"""How many checks come before lessons: the code's own list must not displace failures."""
MAX_READ_PRECEDENTS = 2
"""How many own precedents without a lesson are read for their statements."""
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
"""The section of a decision record that states the decision, as Nygard's and MADR's templates name it."""
LIST_ITEM = re.compile(r"[ \t]*(?:[*+-]|\d{1,3}[.)])[ \t]+(\S.*)")
MINUTES_AN_HOUR = 60


@dataclass(frozen=True, slots=True)
class SuggestionSources:
    """The sources of suggestions.

    `similar` are the matches, the most relevant first, `checks` the open checks, `related` the intents of other agents,
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
    """The decisions that `find_needed_background` returned."""


def build_suggestions(sources: SuggestionSources) -> list[Suggestion]:
    """Return at most five suggestions, the most useful first.

    The order: how to satisfy guardrails that block; open intents of others; a confidence that is far from the record;
    the first two open checks; successors of the best matches; lessons of failures and of partial successes;
    conditions that failures had and successes had not; how to satisfy guardrails that warn; intents of others that
    failed; very similar failures without a lesson; the other checks; lessons of successes; precedents of the reader. No
    decision is in two of them, and no text twice.
    """
    return take_distinct(rank_suggestions(sources), MAX_SUGGESTIONS)


def find_needed_background(similar: Sequence[Match], reader: str, bars: SuggestionBars) -> NeededBackground | None:
    """Return the decisions to load in full for suggestions, or None (the usual case).

    They are superseded decisions whose successor is not among the matches; the best own precedents without a lesson
    and own decisions with a long one, for their contexts; and own decisions among those that are compared, for their
    contexts too.
    """
    teaching = [match.decision for match in similar if match.score >= bars.teaching]
    own = [decision for decision in teaching if decision.agent == reader]
    precedents = [decision for decision in own if is_open_precedent(decision) and not decision.notes]
    compared = [decision for decision in own if decision.outcome is not None] if can_compare(teaching) else []
    long = [decision for decision in teaching if is_long_lesson(decision)][:MAX_QUOTED_RECORDS]
    quoted = [decision for decision in long if decision.agent == reader]
    listed = {match.decision.id for match in similar}
    superseded = [
        match.decision.id
        for match in similar
        if match.score >= bars.teaching and match.superseded_by is not None and match.superseded_by not in listed
    ]
    contexts = [decision.id for decision in (*precedents[:MAX_READ_PRECEDENTS], *quoted, *compared)]
    if not contexts and not superseded:
        return None
    return NeededBackground(tuple(dict.fromkeys(contexts))[:MAX_BACKGROUND], tuple(superseded[:MAX_BACKGROUND]))


def unconfirmed_checks(announcement: Announcement, code: CodeContext | None) -> list[str]:
    confirmed = announcement.metadata.get(CONFIRMED_CHECKS_KEY)
    made = {text for text in confirmed if isinstance(text, str)} if isinstance(confirmed, list) else set()
    return [check for check in code.check_items if check not in made] if code else []


def rank_suggestions(sources: SuggestionSources) -> Iterator[Suggestion]:
    """Yield every suggestion, the most useful first."""
    teaching = [
        with_background(match, sources.background) for match in sources.similar if match.score >= sources.bars.teaching
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
    # A missing input is not a reason to act differently, and would displace suggestions that are.
    yield from suggest_remedies(each for each in sources.verdict.warnings if each.code != UNKNOWN_ACTION)
    yield from suggest_failed_intents(related, sources.now)
    bare = [match for match in troubled if match.decision.id not in sources.background.lessons]
    yield from suggest_bare_failures(bare, sources.bars.bare)
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
    """Yield how to satisfy guardrails: the suggestions of their authors, or the missing inputs."""
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
    """Yield recent intents of other agents that did not succeed."""
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
    """Yield the successors of superseded decisions, as far as the reader may read them."""
    listed = {match.decision.id: match.decision for match in sources.similar}
    for match in matches:
        decision = match.decision
        if decision.status is not DecisionStatus.SUPERSEDED:
            continue
        new = listed.get(match.superseded_by or "") or sources.background.successors.get(decision.id)
        by = f"by {quote_title(new)}" if new else "; look for its successor before you rely on it"
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
    """Yield conditions that distinguish the failures among the matches from the successes."""
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
    """Yield failures without notes, if they are very similar."""
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
    """Yield earlier decisions of the reader without a review, if the record says more than its title."""
    for match in matches:
        decision = match.decision
        teaching = lesson_text(decision) or decision_statement(decision.context or "")
        if is_open_precedent(decision) and decision.agent == reader and teaching:
            text = f"You have decided on {quote_title(decision)}: {teaching}"
            yield Suggestion(text, SuggestionKind.PRECEDENT, (decision.id,), relevance=relevance_of(match))


def is_open_precedent(decision: Decision) -> bool:
    """Return True if a decision was taken and has no outcome yet."""
    return decision.status is DecisionStatus.DECIDED and decision.outcome is None


def with_background(match: Match, background: DecisionBackground) -> Match:
    """Return a match with the context that was read, and instead of a long lesson the sentence that helps."""
    decision = match.decision
    context = background.contexts.get(decision.id, decision.context)
    notes = background.lessons.get(decision.id, decision.notes)
    if context is decision.context and notes is decision.notes:
        return match
    return replace(match, decision=replace(decision, context=context, notes=notes))


def decision_statement(context: str) -> str:
    """Return the first paragraph or item below a heading such as `## Decision`, shortened, or "".

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
    """Return a decision's notes on one line, shortened, or ""."""
    return shorten_text(decision.notes or "")


def plain_title(decision: Decision) -> str:
    """Return a decision's title without a full stop at its end."""
    return decision.title.strip().rstrip(".")


def quote_title(decision: Decision) -> str:
    """Return a decision's title in quotation marks."""
    return f'"{plain_title(decision)}"'


def add_lesson(sentence: str, lesson: str) -> str:
    return f"{sentence}. Lesson: {lesson}" if lesson else sentence


def relevance_of(match: Match) -> float:
    return min(max(match.score, 0.0), 1.0)


def shorten_text(text: str) -> str:
    """Return a text on one line, at most `MAX_QUOTED` characters long."""
    return truncate_text(" ".join(text.split()), MAX_QUOTED)


def describe_age(age: timedelta) -> str:
    """Return how long ago something was, in whole minutes or hours."""
    minutes = int(age.total_seconds() // 60)
    if minutes < 1:
        return "just now"
    number, unit = (minutes, "minute") if minutes < MINUTES_AN_HOUR else (minutes // MINUTES_AN_HOUR, "hour")
    return f"{count_noun(number, unit)} ago"


MIN_DECISIONS = 2
"""How many decisions must have failed, and how many succeeded, before they are compared. Chosen: one of each differ in
everything."""
WORD_PATTERN = re.compile(r"[^\W\d_]{4,}")
"""A word that may name a condition; shorter ones mostly bind others."""

FAILED = frozenset({Outcome.FAILURE, Outcome.PARTIAL})
"""A partial success counts as a failure."""
TAGGED = "have the tag {}"
MENTIONED = 'mention "{}", as you do'

Conditions = Callable[[Decision], Iterable[str]]


@dataclass(frozen=True, slots=True)
class DistinguishingCondition:
    """A condition that several decisions of one group have, and none of the other group.

    `text` completes "2 of the 3 similar decisions that failed …", `failed` is whether they did, `decisions` are those
    that have it, `of` is how many are in their group and `against` how many in the other.
    """

    text: str
    mentions: bool
    """Whether the condition is a word that the decisions mention, not a tag."""
    failed: bool
    decisions: tuple[Decision, ...]
    of: int
    against: int


def distinguishing_conditions(decisions: Sequence[Decision], intent: str, reader: str) -> list[DistinguishingCondition]:
    """Return at most one condition of failures and one of successes, each the most frequent.

    Conditions are tags and, for failures only, words that the intent has too: those of titles and, of the reader's own
    decisions, of contexts, which are private.
    """
    if not can_compare(decisions):
        return []
    failed = [each for each in decisions if each.outcome in FAILED]
    succeeded = [each for each in decisions if each.outcome is Outcome.SUCCESS]
    stated = split_words(intent)

    def words(decision: Decision) -> Iterable[str]:
        context = decision.context if decision.agent == reader else None
        return stated & split_words(f"{decision.title} {context or ''}")

    found = [
        most_frequent_condition(failed, succeeded, list_tags, TAGGED, failed=True)
        or most_frequent_condition(failed, succeeded, words, MENTIONED, failed=True),
        most_frequent_condition(succeeded, failed, list_tags, TAGGED, failed=False),
    ]
    return [condition for condition in found if condition]


def can_compare(decisions: Sequence[Decision]) -> bool:
    """Return True if enough decisions failed and enough succeeded."""
    failed = sum(each.outcome in FAILED for each in decisions)
    succeeded = sum(each.outcome is Outcome.SUCCESS for each in decisions)
    return min(failed, succeeded) >= MIN_DECISIONS


def most_frequent_condition(
    group: Sequence[Decision], others: Sequence[Decision], conditions: Conditions, text: str, *, failed: bool
) -> DistinguishingCondition | None:
    excluded = {condition for each in others for condition in conditions(each)}
    counts = Counter(condition for each in group for condition in set(conditions(each)) - excluded)
    # Of conditions that are equally frequent, the alphabetically first, so that answers do not depend on hashes.
    best = min(counts, key=lambda condition: (-counts[condition], condition), default=None)
    if best is None or counts[best] < MIN_DECISIONS:
        return None
    having = tuple(each for each in group if best in set(conditions(each)))
    return DistinguishingCondition(text.format(best), text == MENTIONED, failed, having, len(group), len(others))


def list_tags(decision: Decision) -> Iterable[str]:
    """Return the tags of a decision, without case."""
    return [tag.casefold() for tag in decision.tags]


def split_words(text: str) -> frozenset[str]:
    """Return the words of a text that may name a condition, without case."""
    return frozenset(word.casefold() for word in WORD_PATTERN.findall(text))


TROUBLED = frozenset({Outcome.FAILURE, Outcome.PARTIAL, Outcome.ABANDONED})

MIN_SERIES = 3
"""Decisions of a series from which their number is stated. Chosen: one of two says nothing about the next."""

OUTCOME_VERBS = {
    Outcome.FAILURE: "failed",
    Outcome.PARTIAL: "succeeded only in part",
    Outcome.ABANDONED: "was abandoned",
    Outcome.SUCCESS: "succeeded",
}


def describe_outcome(match: Match, outcome: Outcome, listed: Sequence[Match]) -> str:
    """Return the subject and verb of a sentence about how a decision turned out, such as "A similar decision failed".

    If one of a series did not succeed, the text states the number of the others: listed ones and those they represent.
    """
    verb = OUTCOME_VERBS[outcome]
    series = series_of_title(match.decision.title) if outcome in TROUBLED else None
    alike = [] if series is None else [each for each in listed if series_of_title(each.decision.title) == series]
    mates = [each for each in alike if each.decision.id != match.decision.id]
    count = 1 + len(mates) + sum(each.similar_count for each in (match, *mates))
    if outcome not in TROUBLED or count < MIN_SERIES:
        return f"A similar decision {verb}"
    # Of those that are left out, only the different outcomes are known, not how many there are of each.
    known = {found for each in mates for found in (each.decision.outcome, *each.similar_outcomes)}
    is_only_one = match.similar_count == 0 and TROUBLED.isdisjoint(known)
    return f"{'One' if is_only_one else 'At least one'} of {count} similar decisions {verb}"
