"""Which decisions a listing or search may show, in SQL, and the tokens of its pages."""

from __future__ import annotations

from sqlalchemy import BindParameter, ColumnElement, and_, bindparam, exists, or_

from cstp_grpc.decisions.model import Decision, DecisionFilter
from cstp_grpc.storage.page_token import from_microseconds, read_token, to_microseconds, write_token
from cstp_grpc.storage.tables import decision_tags, decisions
from cstp_grpc.storage.text import storable
from cstp_grpc.vocabulary import Visibility

Listing = tuple[DecisionFilter, str]
"""What is listed: the conditions, and the agent that may read it."""

CALLER: BindParameter[str] = bindparam("caller")

MAY_READ = or_(decisions.c.agent == CALLER, decisions.c.visibility == Visibility.SHARED.value)
"""What an agent, given as the parameter `caller`, may read."""

LATEST_FIRST = (decisions.c.date.desc(), decisions.c.id)
"""The order of listings."""


def conditions(filters: DecisionFilter) -> list[ColumnElement[bool]]:
    """Return what a decision must meet to pass; nothing for a filter that does not restrict."""
    column = decisions.c
    found: list[ColumnElement[bool]] = []
    for field, text in (
        (column.category, filters.category),
        (column.project, filters.project),
        (column.agent, filters.agent),
    ):
        if text is not None:
            found.append(field == storable(text))
    if filters.without_agent is not None:
        found.append(column.agent != storable(filters.without_agent))
    if filters.min_confidence is not None:
        found.append(column.confidence >= filters.min_confidence)
    if filters.max_confidence is not None:
        found.append(column.confidence <= filters.max_confidence)
    if filters.date_after is not None:
        found.append(column.date >= filters.date_after)
    if filters.date_before is not None:
        found.append(column.date <= filters.date_before)
    for field, words in (
        (column.stakes, filters.stakes),
        (column.status, filters.status),
        (column.outcome, filters.outcome),
    ):
        if words:
            found.append(field.in_(words))
    return [*found, *(has_tag(tag) for tag in filters.tags)]


def has_tag(tag: str) -> ColumnElement[bool]:
    """Return the condition that a decision has a tag."""
    return exists().where(decision_tags.c.decision_id == decisions.c.id, decision_tags.c.tag == storable(tag))


def page_token(last: Decision, listing: Listing) -> str:
    """Return the token of the page that follows a decision in a listing."""
    return write_token(listing, [to_microseconds(last.date), last.id])


def after_token(token: str, listing: Listing) -> ColumnElement[bool]:
    """Return the condition that a decision is on the pages that a token begins.

    Raises InvalidArgument where the token is not one of this listing.
    """
    microseconds, decision_id = read_token(token, listing, [int, str])
    assert isinstance(microseconds, int)
    date = from_microseconds(microseconds)
    column = decisions.c
    # The first condition follows from the second; it lets the database begin at the right place of its index.
    return and_(column.date <= date, or_(column.date < date, column.id > decision_id))
