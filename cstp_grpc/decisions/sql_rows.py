"""Decisions as rows of the journal's tables, and back."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, TypeVar

import numpy as np
from sqlalchemy import Row, Text, cast

from cstp_grpc.decisions.model import Decision, Links, Reason
from cstp_grpc.decisions.store import Entry, IndexRow, Vector
from cstp_grpc.storage.tables import decision_vectors, decisions
from cstp_grpc.vocabulary import DecisionStatus, Outcome, Stakes, Visibility

T = TypeVar("T")
AnyRow = Row[*tuple[Any, ...]]
Values = Sequence[Any]
"""A row as SQLAlchemy or the driver returns it."""

VECTOR_TYPE = np.dtype("<f4")
"""How a vector is kept: little-endian float32."""

CHUNK = 500
"""How many identifiers one statement names; databases bound the number of parameters."""

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
"""What `summary` reads: everything but what is private or costly."""

LISTED = (*SUMMARY, decisions.c.source)
"""What `listed` reads."""

WHOLE = (
    *LISTED,
    decisions.c.context,
    decisions.c.reason_texts,
    decisions.c.stated_status,
    decisions.c.content_hash,
    decisions.c.idempotency_key,
)
"""What `whole` reads."""

INDEXED = (
    decisions.c.id,
    decisions.c.revision,
    decision_vectors.c.vector,
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
)
"""What `index_row` reads."""


def items(text: str) -> tuple[Any, ...]:
    """Return the items of a list that is kept as JSON."""
    return () if text == "[]" else tuple(json.loads(text))


def summary(row: Values) -> Decision:
    """Return the decision of a row that begins with SUMMARY, without context, texts of reasons, source and links."""
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
        reasons=tuple([Reason(kind, strength=strength) for kind, strength in items(reasons)]),
        tags=items(tags),
        project=project,
    )


def listed(row: AnyRow, links: Links, caller: str) -> Decision:
    """Return the decision of a row of LISTED as an agent may see it in a listing."""
    item = summary(row)
    return replace(item, links=links, source=row.source if item.agent == caller else None)


def whole(row: AnyRow, links: Links) -> Entry:
    """Return the entry of a row of WHOLE."""
    shown = summary(row)
    reasons = [replace(reason, text=text) for reason, text in zip(shown.reasons, row.reason_texts, strict=True)]
    return Entry(
        decision=replace(shown, context=row.context, reasons=tuple(reasons), source=row.source, links=links),
        stated_status=STATUS[row.stated_status],
        content_hash=row.content_hash,
        idempotency_key=row.idempotency_key,
    )


def values(entry: Entry, revision: int, at: datetime) -> dict[str, object]:
    """Return the columns of an entry that is changed at an instant, all but the one of its creation."""
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


def index_row(row: AnyRow) -> IndexRow:
    """Return what a search must know of the decision of a row of INDEXED."""
    key, revision, vector, agent, visibility, category, confidence, date, stakes, status, outcome, tags, project = row
    return IndexRow(
        decision_id=key,
        revision=revision,
        vector=np.frombuffer(vector, VECTOR_TYPE).astype(np.float32, copy=False),
        agent=agent,
        visibility=VISIBILITY[visibility],
        category=category,
        confidence=confidence,
        date=date.timestamp(),
        stakes=STAKES[stakes],
        status=STATUS[status],
        outcome=OUTCOME[outcome],
        tags=items(tags),
        project=project,
    )


def vector_bytes(vector: Vector) -> bytes:
    """Return a vector as it is kept."""
    return np.ascontiguousarray(vector, VECTOR_TYPE).tobytes()


def chunks(sequence: Sequence[T]) -> Iterator[Sequence[T]]:
    """Yield a sequence in pieces that are short enough for one statement."""
    for start in range(0, len(sequence), CHUNK):
        yield sequence[start : start + CHUNK]
