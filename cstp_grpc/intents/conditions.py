"""What similar decisions tell together: conditions of failures and successes, and how one of a series turned out."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from cstp_grpc.decisions.model import Decision, Match
from cstp_grpc.decisions.search.precedents import series_of_title
from cstp_grpc.enums import Outcome

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
    """Return the condition that most decisions of a group have and none of the others; None if there is none."""
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
"""Decisions of a series from which their number is told. Chosen: one of two says nothing about the next."""

OUTCOME_VERBS = {
    Outcome.FAILURE: "failed",
    Outcome.PARTIAL: "succeeded only in part",
    Outcome.ABANDONED: "was abandoned",
    Outcome.SUCCESS: "succeeded",
}


def describe_outcome(match: Match, outcome: Outcome, listed: Sequence[Match]) -> str:
    """Return the subject and verb of a sentence about how a decision turned out, such as "A similar decision failed".

    If one of a series did not succeed, the number of the others is told: those listed, and those for which they stand.
    """
    verb = OUTCOME_VERBS[outcome]
    series = series_of_title(match.decision.title)
    others = [each for each in listed if each.decision.id != match.decision.id]
    mates = [each for each in others if series is not None and series_of_title(each.decision.title) == series]
    count = 1 + len(mates) + sum(each.similar_count for each in (match, *mates))
    if outcome not in TROUBLED or count < MIN_SERIES:
        return f"A similar decision {verb}"
    # Of those that are left out, only the different outcomes are known, not how many there are of each.
    known = {found for each in mates for found in (each.decision.outcome, *each.similar_outcomes)}
    is_only_one = match.similar_count == 0 and TROUBLED.isdisjoint(known)
    return f"{'One' if is_only_one else 'At least one'} of {count} similar decisions {verb}"
