"""Conditions on decisions in SQL, and the mapping between decisions and rows."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, TypeVar

import numpy as np
from sqlalchemy import BindParameter, ColumnElement, Row, Text, and_, bindparam, cast, exists, or_

from cstp_grpc.decisions.decision_terms import NO_TERMS, TERM_TYPE
from cstp_grpc.decisions.model import Decision, DecisionFilter, Links, Reason
from cstp_grpc.decisions.read_policy import ReadPolicy
from cstp_grpc.decisions.sql_tables import decision_tags, decision_terms, decision_vectors, decisions
from cstp_grpc.decisions.store import IndexRow, JournalEntry, PassageVectors, Vectors
from cstp_grpc.enums import DecisionStatus, Outcome, Stakes, Visibility
from cstp_grpc.storage.pagination import decode_page_token, encode_page_token, from_microseconds, to_microseconds
from cstp_grpc.storage.storable_text import replace_unstorable

T = TypeVar("T")
AnyRow = Row[*tuple[Any, ...]]
Values = Sequence[Any]
"""A row as SQLAlchemy or the driver returns it, by position."""

VECTOR_TYPE = np.dtype("<f4")
"""The encoding of stored vectors: little-endian float32 on every machine."""

CHUNK = 500
"""Ids in one statement. Chosen: below 999, the limit of parameters of SQLite before 3.32, with room for others."""

STATUS = {item.value: item for item in DecisionStatus}
VISIBILITY = {item.value: item for item in Visibility}
STAKES: Mapping[str | None, Stakes | None] = {None: None, **{item.value: item for item in Stakes}}
OUTCOME: Mapping[str | None, Outcome | None] = {None: None, **{item.value: item for item in Outcome}}

# Read as text, because most lists are short or empty and SQLAlchemy's way to decode them doubles the cost of a row.
TAGS = cast(decisions.c.tags, Text).label("tags")
REASONS = cast(decisions.c.reasons, Text).label("reasons")

SUMMARY = (
    decisions.c.id,
    decisions.c.title,
    decisions.c.status,
    decisions.c.date,
    decisions.c.agent,
    decisions.c.visibility,
    decisions.c.category,
    decisions.c.stakes,
    decisions.c.confidence,
    decisions.c.outcome,
    decisions.c.reviewed_date,
    decisions.c.notes,
    REASONS,
    TAGS,
    decisions.c.project,
)
"""The columns that `summary_from_row` unpacks, in this order: none that is private or costly to read."""

LISTED = (*SUMMARY, decisions.c.source)
"""The columns that `listed_decision_from_row` unpacks."""

WHOLE = (
    *LISTED,
    decisions.c.context,
    decisions.c.reason_texts,
    decisions.c.stated_status,
    decisions.c.content_hash,
    decisions.c.idempotency_key,
)
"""The columns that `entry_from_row` unpacks."""

INDEXED = (
    decisions.c.id,
    decisions.c.revision,
    decision_vectors.c.vector,
    decision_vectors.c.passages,
    decision_vectors.c.has_lesson,
    decisions.c.agent,
    decisions.c.visibility,
    decisions.c.category,
    decisions.c.confidence,
    decisions.c.date,
    decisions.c.stakes,
    decisions.c.status,
    decisions.c.outcome,
    TAGS,
    decisions.c.project,
    decision_terms.c.terms,
)
"""The columns that `index_row_from_row` unpacks."""


def decode_json_list(text: str) -> tuple[Any, ...]:
    """Return the items of a list that is stored as JSON."""
    return () if text == "[]" else tuple(json.loads(text))


def summary_from_row(row: Values) -> Decision:
    """Convert a row beginning with SUMMARY to a decision without private texts, source and links."""
    # Unpacked, because access by name would take longer than all the rest.
    key, title, status, date, agent, visibility, category, stakes, confidence, outcome, *others = row
    reviewed_date, notes, reasons, tags, project, *_ = others
    return Decision(
        id=key,
        title=title,
        status=STATUS[status],
        date=date,
        agent=agent,
        visibility=VISIBILITY[visibility],
        category=category,
        stakes=STAKES[stakes],
        confidence=confidence,
        outcome=OUTCOME[outcome],
        reviewed_date=reviewed_date,
        notes=notes,
        reasons=tuple([Reason(kind, strength=strength) for kind, strength in decode_json_list(reasons)]),
        tags=decode_json_list(tags),
        project=project,
    )


def listed_decision_from_row(row: AnyRow, links: Links, review_by: datetime | None, caller: str) -> Decision:
    """Convert a row of LISTED to a decision as an agent may see it in a listing."""
    item = replace(summary_from_row(row), links=links)
    # Both are private: where an agent imported it from, and when it looks again.
    return replace(item, source=row.source, review_by=review_by) if item.agent == caller else item


def entry_from_row(row: AnyRow, links: Links, review_by: datetime | None) -> JournalEntry:
    """Convert a row of WHOLE to an entry."""
    shown = summary_from_row(row)
    reasons = [replace(reason, text=text) for reason, text in zip(shown.reasons, row.reason_texts, strict=True)]
    return JournalEntry(
        decision=replace(
            shown,
            context=row.context,
            reasons=tuple(reasons),
            source=row.source,
            links=links,
            review_by=review_by,
        ),
        stated_status=STATUS[row.stated_status],
        content_hash=row.content_hash,
        idempotency_key=row.idempotency_key,
    )


def entry_to_columns(entry: JournalEntry, revision: int, at: datetime) -> dict[str, object]:
    """Return the columns of an entry that changes at an instant, all but that of its creation."""
    item = entry.decision
    return {
        "id": item.id,
        "agent": item.agent,
        "source": item.source,
        "idempotency_key": entry.idempotency_key,
        "content_hash": entry.content_hash,
        "title": item.title,
        "context": item.context,
        "category": item.category,
        "stakes": item.stakes,
        "confidence": item.confidence,
        "stated_status": entry.stated_status,
        "status": item.status,
        "outcome": item.outcome,
        "date": item.date,
        "reviewed_date": item.reviewed_date,
        "notes": item.notes,
        "reasons": [(reason.type, reason.strength) for reason in item.reasons],
        "reason_texts": [reason.text for reason in item.reasons],
        "tags": item.tags,
        "project": item.project,
        "visibility": item.visibility,
        "revision": revision,
        "updated_at": at,
    }


def index_row_from_row(row: AnyRow) -> IndexRow:
    """Convert a row of INDEXED to the row of a search index."""
    key, revision, vectors, passages, has_lesson, agent, visibility, category, confidence, date, *others = row
    stakes, status, outcome, tags, project, terms = others
    return IndexRow(
        decision_id=key,
        revision=revision,
        passages=PassageVectors(decode_vectors(vectors, passages), has_lesson),
        agent=agent,
        visibility=VISIBILITY[visibility],
        category=category,
        confidence=confidence,
        date=date.timestamp(),
        stakes=STAKES[stakes],
        status=STATUS[status],
        outcome=OUTCOME[outcome],
        tags=decode_json_list(tags),
        project=project,
        terms=NO_TERMS if terms is None else np.frombuffer(terms, TERM_TYPE),
    )


def encode_vectors(vectors: Vectors) -> bytes:
    """Return vectors as the database stores them."""
    return np.ascontiguousarray(vectors, VECTOR_TYPE).tobytes()


def decode_vectors(stored: bytes, count: int) -> Vectors:
    """Return `count` stored vectors, one in each row."""
    return np.frombuffer(stored, VECTOR_TYPE).astype(np.float32, copy=False).reshape(count, -1)


def split_into_chunks(sequence: Sequence[T]) -> Iterator[Sequence[T]]:
    """Yield slices of a sequence that are short enough for one statement."""
    for start in range(0, len(sequence), CHUNK):
        yield sequence[start : start + CHUNK]


ListingKey = tuple[DecisionFilter, str] | tuple[DecisionFilter, str, str]
"""What is listed: the conditions, the agent that may read it, and whether only what is due for review."""

CALLER: BindParameter[str] = bindparam("caller")

OWN = decisions.c.agent == CALLER
SHARED = decisions.c.visibility == Visibility.SHARED.value

OWN_OR_SHARED = or_(OWN, SHARED)
"""What an agent, given as the parameter `caller`, may read, unless it is a peer."""

LATEST_FIRST = (decisions.c.date.desc(), decisions.c.id)
"""The order of listings."""


def readable_condition(sharing: ReadPolicy, caller: str) -> ColumnElement[bool]:
    """Return the condition that an agent, also given as the parameter `caller`, may read a decision."""
    if not sharing.is_restricted_peer(caller):
        return OWN_OR_SHARED
    covered: list[ColumnElement[bool]] = [SHARED]
    if sharing.categories:
        covered.append(decisions.c.category.in_(sorted(sharing.categories)))
    if sharing.tags:
        covered.append(tag_condition(decision_tags.c.tag.in_(sorted(sharing.tags))))
    return or_(OWN, and_(*covered))


def filter_conditions(filters: DecisionFilter) -> list[ColumnElement[bool]]:
    """Return the conditions of a filter; empty for a filter that does not restrict."""
    column = decisions.c
    found: list[ColumnElement[bool]] = []
    for field, text in (
        (column.category, filters.category),
        (column.project, filters.project),
        (column.agent, filters.agent),
    ):
        if text is not None:
            found.append(field == replace_unstorable(text))
    if filters.without_agent is not None:
        found.append(column.agent != replace_unstorable(filters.without_agent))
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
    return [*found, *(tag_condition(decision_tags.c.tag == replace_unstorable(tag)) for tag in filters.tags)]


def tag_condition(condition: ColumnElement[bool]) -> ColumnElement[bool]:
    """Return the condition that a decision has a tag that meets a condition."""
    return exists().where(decision_tags.c.decision_id == decisions.c.id, condition)


def listing_page_token(last: Decision, listing: ListingKey) -> str:
    """Return the token of the page that follows a decision in a listing."""
    return encode_page_token(listing, [to_microseconds(last.date), last.id])


def after_token_condition(token: str, listing: ListingKey) -> ColumnElement[bool]:
    """Return the condition that a decision follows the position of a token.

    Raises InvalidArgument if the token is not one of this listing.
    """
    microseconds, decision_id = decode_page_token(token, listing, [int, str])
    assert isinstance(microseconds, int)
    date = from_microseconds(microseconds)
    column = decisions.c
    # The first condition follows from the second; it lets the database begin at the right place of its index.
    return and_(column.date <= date, or_(column.date < date, column.id > decision_id))
