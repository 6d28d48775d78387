"""Which decisions pass a filter, without the help of a database."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import TypeVar

from cstp_grpc.decisions.model import Decision, DecisionFilter

BoundT = TypeVar("BoundT", float, datetime)
Predicate = Callable[[Decision], bool]


def passes(decision: Decision, filters: DecisionFilter) -> bool:
    """Whether a decision meets all conditions; what it does not have meets no condition on it."""
    return predicate_of(filters)(decision)


def predicate_of(filters: DecisionFilter) -> Predicate:
    """Return the test whether a decision passes, which looks at nothing that the filters do not restrict."""
    conditions = list(conditions_of(filters))
    return lambda decision: all(condition(decision) for condition in conditions)


def conditions_of(filters: DecisionFilter) -> Iterator[Predicate]:
    """Yield a test for each condition that restricts."""
    if (category := filters.category) is not None:
        yield lambda decision: decision.category == category
    if (project := filters.project) is not None:
        yield lambda decision: decision.project == project
    if (agent := filters.agent) is not None:
        yield lambda decision: decision.agent == agent
    if (other := filters.without_agent) is not None:
        yield lambda decision: decision.agent != other
    if filters.min_confidence is not None or filters.max_confidence is not None:
        yield lambda decision: is_within(decision.confidence, filters.min_confidence, filters.max_confidence)
    if filters.date_after is not None or filters.date_before is not None:
        yield lambda decision: is_within(decision.date, filters.date_after, filters.date_before)
    if stakes := filters.stakes:
        yield lambda decision: decision.stakes in stakes
    if status := filters.status:
        yield lambda decision: decision.status in status
    if outcome := filters.outcome:
        yield lambda decision: decision.outcome in outcome
    if tags := filters.tags:
        yield lambda decision: all(tag in decision.tags for tag in tags)


def is_within(value: BoundT | None, least: BoundT | None, greatest: BoundT | None) -> bool:
    """Whether there is a value and it is between two bounds, which belong to the range; None does not bound."""
    return value is not None and (least is None or least <= value) and (greatest is None or value <= greatest)
