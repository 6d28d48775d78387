"""Conditions on decisions in SQL, the mapping between decisions and rows, and reading them for search results."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import Any, TypeVar

import numpy as np
import sqlalchemy as sa
from cachetools import LRUCache

from cstp_grpc.common.lazy_dataclass import dataclass, replace
from cstp_grpc.common.unicode_text import replace_unstorable
from cstp_grpc.contract.caller import OVERSEER
from cstp_grpc.contract.enums import DecisionStatus, Outcome, Stakes, Visibility
from cstp_grpc.core.decisions import model
from cstp_grpc.core.decisions.decision_terms import NO_TERMS, TERM_TYPE
from cstp_grpc.core.decisions.read_policy import ReadPolicy
from cstp_grpc.core.decisions.sql_tables import decision_tags, decision_terms, decision_vectors, decisions
from cstp_grpc.core.decisions.store import IndexRow, JournalEntry, PassageVectors, Vectors
from cstp_grpc.platform.storage import pagination
from cstp_grpc.platform.storage.database import Database
from cstp_grpc.platform.storage.row_mapper import ColumnCodec, RowMapper
from cstp_grpc.platform.storage.unit_of_work import CompiledStatement, DriverConnection

T = TypeVar("T")
AnyRow = sa.Row[*tuple[Any, ...]]
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
TAGS = sa.cast(decisions.c.tags, sa.Text).label("tags")
REASONS = sa.cast(decisions.c.reasons, sa.Text).label("reasons")

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
"""The columns of summaries: none that is private or costly to read."""

LISTED = (*SUMMARY, decisions.c.source)
"""The columns that `listed_decision_from_row` reads."""

WHOLE = (
    *LISTED,
    decisions.c.context,
    decisions.c.reason_texts,
    decisions.c.stated_status,
    decisions.c.content_hash,
    decisions.c.idempotency_key,
    decisions.c.created_at,
    decisions.c.updated_at,
)
"""The columns that `entry_from_row` reads."""

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
    return () if text == "[]" else tuple(json.loads(text))


def decode_reasons(text: str) -> tuple[model.Reason, ...]:
    return tuple([model.Reason(kind, strength=strength) for kind, strength in decode_json_list(text)])


DECISION = RowMapper(
    model.Decision,
    decisions,
    codecs={
        "reasons": ColumnCodec(lambda reasons: [(reason.type, reason.strength) for reason in reasons], decode_reasons),
        "tags": ColumnCodec(None, decode_json_list),
    },
)
summary_from_row = DECISION.reader(SUMMARY)
"""Converts a row that begins with SUMMARY to a decision without private texts, source and links."""


def listed_decision_from_row(
    row: AnyRow, links: model.Links, review_by: datetime | None, caller: str
) -> model.Decision:
    """Convert a row of LISTED to a decision as an agent may see it in a listing."""
    item = replace(summary_from_row(row), links=links)
    # Both are private: where an agent imported it from, and when it looks again.
    return replace(item, source=row.source, review_by=review_by) if item.agent == caller else item


def entry_from_row(row: AnyRow, links: model.Links, review_by: datetime | None) -> JournalEntry:
    """Convert a row of WHOLE to an entry."""
    shown = summary_from_row(row)
    reasons = [replace(reason, text=text) for reason, text in zip(shown.reasons, row.reason_texts, strict=True)]
    return JournalEntry(
        decision=replace(
            shown, context=row.context, reasons=tuple(reasons), source=row.source, links=links, review_by=review_by
        ),
        stated_status=STATUS[row.stated_status],
        content_hash=row.content_hash,
        idempotency_key=row.idempotency_key,
        recorded_at=row.created_at,
        changed_at=row.updated_at,
    )


def entry_to_columns(entry: JournalEntry, revision: int, at: datetime) -> dict[str, object]:
    """Return the columns of an entry, all but that of its creation; `at` is when it changes unless it says so."""
    return {
        **DECISION.to_row(entry.decision),
        "idempotency_key": entry.idempotency_key,
        "content_hash": entry.content_hash,
        "stated_status": entry.stated_status,
        "reason_texts": [reason.text for reason in entry.decision.reasons],
        "revision": revision,
        "updated_at": entry.changed_at or at,
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
    return np.ascontiguousarray(vectors, VECTOR_TYPE).tobytes()


def decode_vectors(stored: bytes, count: int) -> Vectors:
    return np.frombuffer(stored, VECTOR_TYPE).astype(np.float32, copy=False).reshape(count, -1)


def split_into_chunks(sequence: Sequence[T]) -> Iterator[Sequence[T]]:
    """Yield slices of a sequence that are short enough for one statement."""
    for start in range(0, len(sequence), CHUNK):
        yield sequence[start : start + CHUNK]


ListingKey = tuple[model.DecisionFilter | str, ...]
"""The conditions of a listing, its caller, and "due" if it lists only decisions that are due for review."""

CALLER: sa.BindParameter[str] = sa.bindparam("caller")

OWN = decisions.c.agent == CALLER

LATEST_FIRST = (decisions.c.date.desc(), decisions.c.id)
"""The order of listings."""


def has_any_tag(tags: Sequence[str]) -> sa.ColumnElement[bool]:
    return sa.exists().where(decision_tags.c.decision_id == decisions.c.id, decision_tags.c.tag.in_(tags))


@dataclass(frozen=True, slots=True, eq=False)
class FilteredRows:
    """Rows with the columns of decisions, and the condition that one has any of some tags."""

    columns: Any
    tagged: Callable[[Sequence[str]], sa.ColumnElement[bool]]


JOURNAL_ROWS = FilteredRows(decisions.c, has_any_tag)


def readable_condition(sharing: ReadPolicy, caller: str, rows: FilteredRows = JOURNAL_ROWS) -> sa.ColumnElement[bool]:
    """Return the condition that an agent, also given as the parameter `caller`, may read a decision."""
    if caller == OVERSEER:
        return sa.true()
    own, shared = rows.columns.agent == CALLER, rows.columns.visibility == Visibility.SHARED.value
    if not sharing.is_restricted_peer(caller):
        return sa.or_(own, shared)
    covered: list[sa.ColumnElement[bool]] = [shared]
    if sharing.categories:
        covered.append(rows.columns.category.in_(sorted(sharing.categories)))
    if sharing.tags:
        covered.append(rows.tagged(sorted(sharing.tags)))
    return sa.or_(own, sa.and_(*covered))


def filter_conditions(filters: model.DecisionFilter, rows: FilteredRows = JOURNAL_ROWS) -> list[sa.ColumnElement[bool]]:
    """Return the conditions of a filter; empty for a filter that does not restrict."""
    # Texts are compared as they would have been stored, or some that are stored would never be found.
    column = rows.columns
    found: list[sa.ColumnElement[bool]] = []
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
    if model.SUMMARY_TAG in filters.tags and rows is JOURNAL_ROWS:
        # Few decisions have it. By the condition below alone, SQLite would look for the tags of all, latest first.
        tagged = sa.select(decision_tags.c.decision_id).where(decision_tags.c.tag == model.SUMMARY_TAG)
        found.append(decisions.c.id.in_(tagged))
    return [*found, *(rows.tagged([replace_unstorable(tag)]) for tag in filters.tags)]


def listing_page_token(last: model.Decision, listing: ListingKey) -> str:
    return pagination.encode_page_token(listing, [pagination.to_microseconds(last.date), last.id])


def after_token_condition(token: str, listing: ListingKey) -> sa.ColumnElement[bool]:
    """Return the condition that a decision follows the position of a token.

    Raises InvalidArgument if the token is not one of this listing.
    """
    microseconds, decision_id = pagination.decode_page_token(token, listing, [int, str])
    assert isinstance(microseconds, int)
    date = pagination.from_microseconds(microseconds)
    column = decisions.c
    # The first condition follows from the second; it lets the database begin at the right place of its index.
    return sa.and_(column.date <= date, sa.or_(column.date < date, column.id > decision_id))


CACHE_BYTES = 8 * 1024 * 1024
"""Memory for cached decisions. Chosen: some thousand of them, small compared with the model of the embedder."""

PARAMETERS = tuple(f"id_{place}" for place in range(2 * CHUNK))
"""The names of the parameters for ids; twice CHUNK, since `_rows` rounds their number up to a power of two."""

SelectedColumns = tuple[sa.ColumnElement[Any], ...]
WITH_REVISION: SelectedColumns = (*SUMMARY, decisions.c.revision)
REVISIONS: SelectedColumns = (sa.func.count(), sa.func.sum(decisions.c.revision))


@dataclass(slots=True)
class CachedSummary:
    """A decision as it was in a revision, and the latest known state of the journal in which it still was so."""

    decision: model.Decision
    revision: int
    # Written by any thread without a lock: an older state in place of a later one only makes it be checked again.
    state: int | None


class CachedSummaryReader:
    """Reads decisions without context, texts of reasons, source and links. Safe for many threads.

    It caches the decisions read last with their revisions, which grow with every change. Each read checks that the
    database still has these revisions, and reads the decisions themselves only if it does not. With `read_state`, which
    is `SqlDecisionStore.read_state` if that asks no database, there is no check until the state is another one.
    """

    def __init__(self, database: Database, read_state: Callable[[], int] | None = None) -> None:
        self._database = database
        self._read_state = read_state
        # Guards the cache, which reorders its entries even when it is read. Not held while the database is asked.
        self._lock = threading.Lock()
        self._cached: LRUCache[str, CachedSummary] = LRUCache(
            CACHE_BYTES, getsizeof=lambda known: model.estimate_memory_bytes(known.decision)
        )
        self._statement = cache(
            lambda columns, count: CompiledStatement(summary_query(columns, count), database.dialect)
        )

    def read(self, ids: Sequence[str]) -> list[model.Decision]:
        """Return the decisions that exist, without checking who may read them. Raises QueryFailed."""
        # Before the database is asked, which may be ahead of it.
        state = None if self._read_state is None else self._read_state()
        with self._lock:
            known = {key: found for key in ids if (found := self._cached.get(key)) is not None}
        unchecked = {key: found for key, found in known.items() if state is None or found.state != state}
        if unchecked or len(known) < len(ids):
            with self._database.open_driver_connection() as driver:
                return [
                    decision
                    for chunk in split_into_chunks(ids)
                    for decision in self._read_chunk(driver, chunk, known, state)
                ]
        return [found.decision for found in known.values()]

    def _read_chunk(
        self, driver: DriverConnection, ids: Sequence[str], cached: Mapping[str, CachedSummary], state: int | None
    ) -> list[model.Decision]:
        known = {key: cached[key] for key in ids if key in cached}
        # One stale decision makes all be read again, which is simpler and seldom: most decisions never change.
        if self._are_current(driver, known):
            for found in known.values():
                found.state = state
        else:
            known = {}
        missing = [key for key in ids if key not in known]
        rows = self._rows(driver, missing, WITH_REVISION)
        read = [CachedSummary(summary_from_row(row), row[-1], state) for row in rows]
        if read:
            with self._lock:
                self._cached.update((found.decision.id, found) for found in read)
        return [found.decision for found in (*known.values(), *read)]

    def _are_current(self, driver: DriverConnection, known: Mapping[str, CachedSummary]) -> bool:
        """Return True if all cached decisions exist in their cached revisions.

        Revisions only grow, so comparing their sum is enough.
        """
        # An aggregate takes one row, which matters on the event loop: the driver releases the interpreter's lock for
        # every row, and gets it back only in its turn.
        present = self._rows(driver, list(known), REVISIONS)
        return not present or list(present[0]) == [len(known), sum(found.revision for found in known.values())]

    def _rows(self, driver: DriverConnection, ids: Sequence[str], columns: SelectedColumns) -> list[Sequence[Any]]:
        """Return the given columns of the decisions that exist; nothing without `ids`."""
        if not ids:
            return []
        # Rounded up to a power of two by repeating the last id, which changes no result: so ten statements serve all
        # lengths, each compiled once.
        count = 1 << (len(ids) - 1).bit_length()
        named = dict(zip(PARAMETERS, [*ids, *[ids[-1]] * (count - len(ids))], strict=False))
        return self._statement(columns, count).fetch(driver, named)


def summary_query(columns: SelectedColumns, count: int) -> sa.Select[Any]:
    ids = [sa.bindparam(name, type_=decisions.c.id.type) for name in PARAMETERS[:count]]
    return sa.select(*columns).where(decisions.c.id.in_(ids))
