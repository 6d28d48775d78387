"""Evaluates reviewed decisions: calibration and patterns of failure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from cstp_grpc.contract.enums import Outcome
from cstp_grpc.modules.calibration import model
from cstp_grpc.modules.calibration.failure_patterns import MAX_FAILURES, find_failure_factors, find_recurring_failures
from cstp_grpc.modules.calibration.scores import Values, detect_drift, score_calibration
from cstp_grpc.modules.calibration.sql_store import SqlReviewStore

MAX_REVIEWS: Final = 20_000
"""Decisions that one report reads, the latest. Chosen: reading and scoring them takes about 0.5 s."""

MAX_GROUPS: Final = 100
"""Groups of one kind in a report, the largest."""

MIN_FAILURES: Final = 5
"""Failures, and others, that factors need; the same as on each side of a factor."""

GROUP_VALUES: Final[Mapping[model.Grouping, Callable[[model.ReviewedDecision], str | None]]] = {
    model.Grouping.AGENT: lambda item: item.agent,
    model.Grouping.CATEGORY: lambda item: item.category,
    model.Grouping.STAKES: lambda item: item.stakes,
    model.Grouping.MONTH: lambda item: f"{item.date.year:04}-{item.date.month:02}",
}


class ReviewAnalyst:
    """Evaluates the reviewed decisions that a caller may read. Raises QueryFailed if the database does not respond."""

    def __init__(self, store: SqlReviewStore, vectors: model.FailureVectors) -> None:
        self._store = store
        self._vectors = vectors

    def report_calibration(
        self, caller: str, query: model.ReviewQuery, groupings: Sequence[model.Grouping]
    ) -> model.CalibrationReport:
        """Return how far the confidences of decisions can be relied on, altogether and by group."""
        found, truncated = self._read(caller, query)
        scored = [item for item in found if item.confidence is not None and item.outcome in model.OUTCOME_VALUES]
        # By rising date, in which drift is looked for; at equal dates by id, so that the answer is always the same.
        scored.sort(key=lambda item: (item.date, item.id))
        confidences, outcomes = outcome_arrays(scored)
        return model.CalibrationReport(
            count=len(scored),
            left_out=len(found) - len(scored),
            truncated=truncated,
            calibration=score_if_enough(scored),
            groups=[group for grouping in groupings for group in score_groups(scored, grouping)],
            drift=detect_drift([item.date for item in scored], confidences, outcomes),
        )

    def report_patterns(self, caller: str, query: model.ReviewQuery, limit: int) -> model.PatternReport:
        """Return the factors of failure and the groups of similar failures, at most `limit` of each."""
        found, truncated = self._read(caller, query)
        compared = [item for item in found if item.outcome in model.OUTCOME_VALUES]
        failures = [item for item in compared if item.outcome is Outcome.FAILURE]
        others = [item for item in compared if item.outcome is not Outcome.FAILURE]
        too_few = len(compared) < model.MIN_REVIEWS or min(len(failures), len(others)) < MIN_FAILURES
        factors = [] if too_few else find_failure_factors(compared)
        vectors = self._vectors.read_vectors([item.id for item in failures[:MAX_FAILURES]])
        return model.PatternReport(
            count=len(compared),
            failures=len(failures),
            truncated=truncated,
            too_few=too_few,
            factors=factors[:limit],
            tested=len(factors),
            recurring=find_recurring_failures(failures, vectors, others)[:limit],
        )

    def _read(self, caller: str, query: model.ReviewQuery) -> tuple[Sequence[model.ReviewedDecision], bool]:
        filters = query.filters
        if filters.agent is None and not query.all_agents:
            filters = replace(filters, agent=caller)
        # One more than is evaluated, which tells whether there are more.
        found = self._store.read_latest(caller, filters, MAX_REVIEWS + 1)
        return found[:MAX_REVIEWS], len(found) > MAX_REVIEWS


def outcome_arrays(scored: Iterable[model.ReviewedDecision]) -> tuple[Values, Values]:
    pairs = [(item.confidence, model.OUTCOME_VALUES[item.outcome]) for item in scored]
    values = np.array(pairs, np.float64).reshape(-1, 2)
    return values[:, 0], values[:, 1]


def score_if_enough(scored: Sequence[model.ReviewedDecision]) -> model.Calibration | None:
    return score_calibration(*outcome_arrays(scored)) if len(scored) >= model.MIN_REVIEWS else None


def score_groups(scored: Sequence[model.ReviewedDecision], grouping: model.Grouping) -> list[model.CalibrationGroup]:
    """Return the groups of a kind, the largest first, then by value."""
    members: defaultdict[str | None, list[model.ReviewedDecision]] = defaultdict(list)
    for item in scored:
        members[GROUP_VALUES[grouping](item)].append(item)
    largest = sorted(members, key=lambda value: (-len(members[value]), value or ""))[:MAX_GROUPS]
    return [
        model.CalibrationGroup(grouping, value, len(members[value]), score_if_enough(members[value]))
        for value in largest
    ]
