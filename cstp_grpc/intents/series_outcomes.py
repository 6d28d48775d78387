"""Says how a similar decision turned out, beside those that are like it."""

from __future__ import annotations

from collections.abc import Sequence

from cstp_grpc.decisions.model import Match
from cstp_grpc.decisions.search.precedents import series_of_title
from cstp_grpc.enums import Outcome

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
