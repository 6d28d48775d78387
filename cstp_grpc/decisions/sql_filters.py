"""Which decisions a listing or search may show, in SQL, and the tokens of its pages."""

from __future__ import annotations

from sqlalchemy import BindParameter, ColumnElement, and_, bindparam, exists, or_

from cstp_grpc.decisions.model import Decision, DecisionFilter
from cstp_grpc.decisions.sharing import Sharing
from cstp_grpc.storage.page_token import from_microseconds, read_token, to_microseconds, write_token
from cstp_grpc.storage.tables import decision_tags, decisions
from cstp_grpc.storage.text import storable
from cstp_grpc.vocabulary import Visibility

Listing = tuple[DecisionFilter, str]
"""What is listed: the conditions, and the agent that may read it."""

CALLER: BindParameter[str] = bindparam("caller")

OWN = decisions.c.agent == CALLER
SHARED = decisions.c.visibility == Visibility.SHARED.value

OWN_OR_SHARED = or_(OWN, SHARED)
"""What an agent, given as the parameter `caller`, may read, unless it is a peer."""

LATEST_FIRST = (decisions.c.date.desc(), decisions.c.id)
"""The order of listings."""


def may_read(sharing: Sharing, caller: str) -> ColumnElement[bool]:
    """Return the condition that an agent, given as the parameter `caller` too, may read a decision."""
    if not sharing.narrows(caller):
        return OWN_OR_SHARED
    covered: list[ColumnElement[bool]] = [SHARED]
    if sharing.categories:
        covered.append(decisions.c.category.in_(sorted(sharing.categories)))
    if sharing.tags:
        covered.append(has_tag(decision_tags.c.tag.in_(sorted(sharing.tags))))
    return or_(OWN, and_(*covered))


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
    return [*found, *(has_tag(decision_tags.c.tag == storable(tag)) for tag in filters.tags)]


def has_tag(condition: ColumnElement[bool]) -> ColumnElement[bool]:
    """Return the condition that a decision has a tag that meets a condition."""
    return exists().where(decision_tags.c.decision_id == decisions.c.id, condition)


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
