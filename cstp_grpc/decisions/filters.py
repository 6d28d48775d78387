"""Which decisions pass a filter, without the help of a database."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import TypeVar

from cstp_grpc.decisions.model import Decision, DecisionFilter

BoundT = TypeVar("BoundT", float, datetime)


def passes(decision: Decision, filters: DecisionFilter) -> bool:
    """Whether a decision meets all conditions; what it does not have meets no condition on it."""
    return (
        equals(decision.category, filters.category)
        and equals(decision.project, filters.project)
        and equals(decision.agent, filters.agent)
        and decision.agent != filters.without_agent
        and within(decision.confidence, filters.min_confidence, filters.max_confidence)
        and within(decision.date, filters.date_after, filters.date_before)
        and any_of(decision.stakes, filters.stakes)
        and any_of(decision.status, filters.status)
        and any_of(decision.outcome, filters.outcome)
        and all(tag in decision.tags for tag in filters.tags)
    )


def equals(value: str | None, wanted: str | None) -> bool:
    """Whether a value is the wanted one, if one is wanted."""
    return wanted is None or value == wanted


def within(value: BoundT | None, least: BoundT | None, greatest: BoundT | None) -> bool:
    """Whether a value is between two bounds, which belong to the range; None does not bound."""
    if least is None and greatest is None:
        return True
    return value is not None and (least is None or least <= value) and (greatest is None or value <= greatest)


def any_of(value: str | None, wanted: Collection[str]) -> bool:
    """Whether a value is one of the wanted, if any are wanted."""
    return not wanted or value in wanted
