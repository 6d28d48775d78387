"""Finds conditions that similar decisions had if they failed and not if they succeeded, or the other way round."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from cstp_grpc.decisions.model import Decision
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
