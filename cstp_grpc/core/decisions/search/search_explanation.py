"""Explanations of searches: the parts of each score, and why a decision is not among the results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

from cstp_grpc.core.decisions import model
from cstp_grpc.core.decisions.journal_reader import decision_not_found_error
from cstp_grpc.core.decisions.search.decision_search import LISTED_OF_SERIES, DecisionSearch, SearchRun


def explain_search(
    search: DecisionSearch,
    text: str,
    filters: model.DecisionFilter,
    caller: str,
    limit: int,
    min_scores: tuple[float, float],
    expected: Sequence[str],
) -> model.ExplainedSearch:
    """Search as `DecisionSearch.search` does, and explain each result and each expected decision.

    `min_scores` are those of all results, and of the best one. Raises NotFound for an expected decision that the caller
    may not read, and the errors of that search.
    """
    min_score, least_best = min_scores
    matches = search.search(text, filters, caller, limit, min_score)
    matches, min_score = keep_relevant(matches, min_score, least_best)
    run = search.begin_run(text, caller)
    places = {match.decision.id: place for place, match in enumerate(matches, 1)}
    missing = [key for key in dict.fromkeys(expected) if key not in places]
    run.read(missing)
    if unknown := [key for key in missing if key not in run.found]:
        raise decision_not_found_error(unknown[0])
    scored = {
        item.decision_id: (item, parts)
        for item, parts in run.rows.candidates_of((*places, *missing)).explain(run.query)
    }
    found = []
    for decision in (*(match.decision for match in matches), *(run.found[key] for key in missing)):
        item, parts = scored.get(decision.id, (None, ()))
        place = places.get(decision.id, 0)
        unmet = None if place else unmet_conditions(filters, decision)
        similar = None if place or item is None else find_similar(run, matches, decision)
        if place:
            outcome = model.SearchOutcome.LISTED
        elif unmet is not None:
            outcome = model.SearchOutcome.FILTERED
        elif item is None:
            outcome = model.SearchOutcome.NOT_INDEXED
        elif item.score < min_score:
            outcome = model.SearchOutcome.BELOW_MIN_SCORE
        elif similar is not None:
            outcome = model.SearchOutcome.SIMILAR_LISTED
        elif len(matches) == limit and item.score <= matches[-1].score:
            outcome = model.SearchOutcome.BEYOND_LIMIT
        else:
            outcome = model.SearchOutcome.NOT_PROPOSED
        score = None if item is None else item.score
        found.append(model.SearchExplanation(decision, outcome, place, score, parts, unmet, similar))
    return model.ExplainedSearch(tuple(found), min_score, run.query.curve.slope)


SHARE_OF_BEST = 0.1
"""The share of the best score that others need where the query sets no minimum. Chosen: unrelated records score a
twentieth, which is noise below a certain result."""


def keep_relevant(
    matches: Sequence[model.Match], min_score: float, least_best: float
) -> tuple[list[model.Match], float]:
    """Return the matches that are results, and the score that they need: none unless the best reaches `least_best`."""
    best = max((match.score for match in matches), default=0.0)
    if best < least_best:
        return [], least_best
    if min_score < least_best:
        min_score = max(min_score, SHARE_OF_BEST * best)
    return [match for match in matches if match.score >= min_score], min_score


def unmet_conditions(filters: model.DecisionFilter, decision: model.Decision) -> model.DecisionFilter | None:
    """Return the conditions of a filter that a decision does not meet; None if it meets all."""
    given = {each.name: getattr(filters, each.name) for each in fields(filters)}
    unmet = {
        key: given[key]
        for key in given
        if not model.build_predicate(model.DecisionFilter(**{key: given[key]}))(decision)
    }
    return model.DecisionFilter(**unmet) if unmet else None


def find_similar(run: SearchRun, matches: Sequence[model.Match], decision: model.Decision) -> str | None:
    """Return the listed summary of a decision, or the one that stands for it if its series has no further place."""
    summaries = {link.from_id for link in run.links_of(decision.id) if link.type is model.LinkType.SUMMARIZES}
    for match in matches:
        if match.similar_count and match.decision.id in summaries and match.decision.agent == decision.agent:
            return match.decision.id
    groups = run.group([*matches, model.Match(decision, 0.0)])
    group = next(each for each in groups if each.matches[-1].decision is decision)
    return group.first.decision.id if len(group.matches) > LISTED_OF_SERIES else None
