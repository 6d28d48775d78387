"""Decisions, their vectors and the dates at which they are to be reviewed, in SQL."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from cstp_grpc.common.unicode_text import replace_unstorable
from cstp_grpc.contract.enums import DecisionStatus
from cstp_grpc.core.decisions import sql_links, sql_mapping
from cstp_grpc.core.decisions.decision_terms import ANALYSIS_VERSION, SearchedContent, cached_terms
from cstp_grpc.core.decisions.model import (
    Decision,
    DecisionFilter,
    DecisionLink,
    JournalChange,
    LinkType,
    RemovalFilter,
    build_predicate,
    content_texts,
)
from cstp_grpc.core.decisions.passages import PASSAGE_FORMAT
from cstp_grpc.core.decisions.read_policy import ReadPolicy
from cstp_grpc.core.decisions.sql_tables import (
    decision_links,
    decision_tags,
    decision_terms,
    decision_vectors,
    decisions,
    deleted_decisions,
    journal_identity,
    prepared_vectors,
    review_deadlines,
    suspended_links,
)
from cstp_grpc.core.decisions.store import DeclaredLinks, ErasedRow, IndexRow, JournalEntry, PassageVectors
from cstp_grpc.platform.storage.database import Database
from cstp_grpc.platform.storage.pagination import Page, PageRequest, count_within_budget, estimate_message_bytes
from cstp_grpc.platform.storage.unit_of_work import CompiledStatement, UnitOfWork, begins_with


def read_deadlines(unit_of_work: UnitOfWork, ids: Sequence[str]) -> dict[str, datetime]:
    columns = review_deadlines.c
    return {
        key: review_by
        for chunk in sql_mapping.split_into_chunks(ids)
        for key, review_by in unit_of_work.execute(
            sa.select(columns.decision_id, columns.review_by).where(columns.decision_id.in_(chunk))
        )
    }


def insert_deadlines(unit_of_work: UnitOfWork, found: Iterable[Decision]) -> None:
    """Store the review dates of decisions whose dates are not stored yet."""
    rows = [{"decision_id": item.id, "review_by": item.review_by} for item in found if item.review_by is not None]
    if rows:
        unit_of_work.execute(sa.insert(review_deadlines), rows)


def delete_deadlines(unit_of_work: UnitOfWork, ids: Sequence[str]) -> None:
    for chunk in sql_mapping.split_into_chunks(ids):
        unit_of_work.execute(sa.delete(review_deadlines).where(review_deadlines.c.decision_id.in_(chunk)))


def review_due_condition(at: datetime) -> sa.ColumnElement[bool]:
    """Return the condition that a decision of the agent given as the parameter `caller` is due for review."""
    due = (
        sa.select(review_deadlines.c.decision_id)
        .where(review_deadlines.c.review_by <= at)
        .where(sa.or_(decisions.c.reviewed_date.is_(None), decisions.c.reviewed_date < review_deadlines.c.review_by))
    )
    return sql_mapping.OWN & (decisions.c.status != DecisionStatus.SUPERSEDED.value) & decisions.c.id.in_(due)


FETCH = 1000
"""Rows fetched at a time when all are read; see SYNC_BATCH, which is as many."""

# Built once, because building a statement costs as much as running it.
OF_IDS = decisions.c.id.in_(sa.bindparam("ids", expanding=True))
BY_ID = sa.select(*sql_mapping.WHOLE).where(OF_IDS)
BY_KEY = sa.select(*sql_mapping.WHOLE).where(
    decisions.c.agent == sa.bindparam("agent"), decisions.c.idempotency_key == sa.bindparam("key")
)
OF_MODEL = decision_vectors.c.model == sa.bindparam("model")
ROWS = (
    sa.select(*sql_mapping.INDEXED)
    .select_from(decisions.join(decision_vectors).outerjoin(decision_terms))
    .where(OF_MODEL)
    .order_by(decisions.c.revision)
)
EMBEDDED = sa.exists().where(decision_vectors.c.decision_id == decisions.c.id, OF_MODEL)
CURRENT_VECTORS = sa.exists().where(
    decision_vectors.c.decision_id == decisions.c.id, OF_MODEL, decision_vectors.c.format == PASSAGE_FORMAT
)
CURRENT_TERMS = sa.exists().where(
    decision_terms.c.decision_id == decisions.c.id, decision_terms.c.version == ANALYSIS_VERSION
)
UNEMBEDDED = sa.select(decisions.c.id).where(~EMBEDDED).order_by(decisions.c.id)
OUTDATED = sa.select(decisions.c.id).where(sa.or_(~CURRENT_VECTORS, ~CURRENT_TERMS)).order_by(decisions.c.id)
UP_TO_DATE = sa.select(decisions.c.id).where(CURRENT_VECTORS, OF_IDS)
NEWEST_REVISION = sa.select(
    sa.select(sa.func.coalesce(sa.func.max(decisions.c.revision), -1)).scalar_subquery(),
    sa.select(sa.func.coalesce(sa.func.max(deleted_decisions.c.revision), -1)).scalar_subquery(),
)
ERASED = (
    sa.select(deleted_decisions.c.id, deleted_decisions.c.revision)
    .where(deleted_decisions.c.revision > sa.bindparam("after", type_=sa.BigInteger))
    .order_by(deleted_decisions.c.revision)
)


class SqlDecisionStore:
    """Stores decisions, their links and their vectors in SQLite or PostgreSQL.

    Reads open their own snapshot and raise QueryFailed if the database does not respond. Writes, and the reads they
    depend on, belong to the transaction of the given unit of work. With `is_sole_writer`, nobody but this store changes
    decisions, neither in this process nor in another one.
    """

    def __init__(self, database: Database, sharing: ReadPolicy, *, is_sole_writer: bool = False) -> None:
        self._database = database
        self._sharing = sharing
        self._changes = 0
        """How many transactions with changes of decisions have ended; written by the writer's thread alone."""
        self._counts_changes = is_sole_writer
        self._summaries = sql_mapping.CachedSummaryReader(database, self.read_state if is_sole_writer else None)
        self._newest = CompiledStatement(NEWEST_REVISION, database.dialect)
        self._erased = CompiledStatement(ERASED, database.dialect)

    @property
    def is_local(self) -> bool:
        """Whether the database is a file of this machine."""
        return self._database.is_sqlite

    def get(self, decision_id: str) -> Decision | None:
        """Return a whole decision, without checking who may read it."""
        entry = self.get_entries([decision_id]).get(decision_id)
        return entry.decision if entry else None

    def get_entries(self, ids: Sequence[str]) -> dict[str, JournalEntry]:
        """Return whole decisions with their internal fields, by id, without checking who may read them."""
        with self._database.read_snapshot() as unit_of_work:
            return self.load(unit_of_work, ids)

    def get_declared_links(self, ids: Sequence[str]) -> dict[str, DeclaredLinks]:
        """Return the links that decisions declare, by id."""
        with self._database.read_snapshot() as unit_of_work:
            return sql_links.read_declared(unit_of_work, ids)

    def may_read(self, decision: Decision, caller: str) -> bool:
        """Return True if an agent may read a decision: its own, or a shared one that the read policy allows."""
        return self._sharing.may_read(decision, caller)

    def get_readable(self, ids: Sequence[str], caller: str, filters: DecisionFilter) -> dict[str, Decision]:
        """Return the decisions of `ids` that the caller may read and that pass the filters, by id.

        They have no context, texts of reasons, source and links.
        """
        passes = build_predicate(filters)
        # The filters are applied here: with them in SQL, SQLite may scan an index instead of looking up the ids.
        found = self._summaries.read(ids) if ids else []
        return {item.id: item for item in found if self._sharing.may_read(item, caller) and passes(item)}

    def page(
        self,
        caller: str,
        filters: DecisionFilter,
        request: PageRequest,
        due_at: datetime | None = None,
        id_prefix: str | None = None,
    ) -> Page[Decision]:
        """Return the decisions that the caller may read and that pass the filters, latest first, then by id.

        With `due_at` only the caller's own whose review is due at that instant, with `id_prefix` only those whose ids
        begin with it. They have no context and texts of
        reasons, and others' no source and date of review. Raises InvalidArgument if the page token is not one of this
        listing.
        """
        # Without the instant, which is a later one for each page.
        marks = (*(() if due_at is None else ("due",)), *(() if id_prefix is None else (f"id {id_prefix}",)))
        listing: sql_mapping.ListingKey = (filters, caller, *marks)
        shown_to_caller = sql_mapping.readable_condition(self._sharing, caller)
        query = sa.select(*sql_mapping.LISTED).where(shown_to_caller, *sql_mapping.filter_conditions(filters))
        if due_at is not None:
            query = query.where(review_due_condition(due_at))
        if id_prefix is not None:
            query = query.where(begins_with(decisions.c.id, id_prefix))
        # One more than the page, which shows whether there is a next one.
        query = query.order_by(*sql_mapping.LATEST_FIRST).limit(request.limit + 1)
        if request.token:
            query = query.where(sql_mapping.after_token_condition(request.token, listing))
        with self._database.read_snapshot() as unit_of_work:
            rows = unit_of_work.execute(query, {"caller": caller}).all()
            ids = [row.id for row in rows]
            links, deadlines = sql_links.read_links(unit_of_work, ids), read_deadlines(unit_of_work, ids)
        shown = [
            sql_mapping.listed_decision_from_row(row, links[row.id], deadlines.get(row.id), caller)
            for row in rows[: request.limit]
        ]
        shown = shown[: count_within_budget(shown, estimate_decision_size)]
        return Page(tuple(shown), sql_mapping.listing_page_token(shown[-1], listing) if len(rows) > len(shown) else "")

    def changes(
        self, caller: str, filters: DecisionFilter, after_revision: int, limit: int
    ) -> tuple[list[JournalChange], int]:
        """Return changes after a revision by rising revision, and the revision up to which these are all.

        These are the decisions that the caller may read and that pass the filters, as `page` returns them, and the
        deletions of its own; together at most `limit`.
        """
        changed = sa.select(*sql_mapping.LISTED, decisions.c.revision).where(
            decisions.c.revision > after_revision,
            sql_mapping.readable_condition(self._sharing, caller),
            *sql_mapping.filter_conditions(filters),
        )
        erased = sa.select(deleted_decisions.c.revision, deleted_decisions.c.id).where(
            deleted_decisions.c.revision > after_revision, deleted_decisions.c.agent == caller
        )
        # One snapshot: commits during the read have greater revisions than the newest one in it.
        with self._database.read_snapshot() as unit_of_work:
            (revisions,) = self._newest.all(unit_of_work, {})
            newest = int(max(revisions))
            if newest <= after_revision:
                return [], after_revision
            ordered = changed.order_by(decisions.c.revision).limit(limit)
            rows = unit_of_work.execute(ordered, {"caller": caller}).all()
            ids = [row.id for row in rows]
            links, deadlines = sql_links.read_links(unit_of_work, ids), read_deadlines(unit_of_work, ids)
            gone = unit_of_work.execute(erased.order_by(deleted_decisions.c.revision).limit(limit)).all()
        found = [
            JournalChange(
                row.revision, sql_mapping.listed_decision_from_row(row, links[row.id], deadlines.get(row.id), caller)
            )
            for row in rows
        ]
        found += [JournalChange(revision, deleted_id=key) for revision, key in gone]
        found.sort(key=lambda change: change.revision)
        return found[:limit], found[limit - 1].revision if len(found) >= limit else newest

    def index_rows(self, model: str, after_revision: int = -1) -> Iterator[IndexRow]:
        """Yield the decisions that have a vector of this model and changed after a revision, by rising revision."""
        query = ROWS.where(decisions.c.revision > after_revision).execution_options(yield_per=FETCH)
        with self._database.read_snapshot() as unit_of_work:
            yield from map(sql_mapping.index_row_from_row, unit_of_work.execute(query, {"model": model}))

    def index_rows_of(self, model: str, ids: Sequence[str]) -> list[IndexRow]:
        """Return the rows of `ids` that have a vector of this model, by rising revision."""
        with self._database.read_snapshot() as unit_of_work:
            return self.changed_rows(unit_of_work, model, ids)

    def changed_ids(self, after_revision: int, limit: int) -> list[str]:
        """Return the decisions that changed after a revision, at most `limit`, by rising revision."""
        query = sa.select(decisions.c.id).where(decisions.c.revision > after_revision)
        with self._database.read_snapshot() as unit_of_work:
            return list(unit_of_work.execute(query.order_by(decisions.c.revision).limit(limit)).scalars())

    def erased_rows(self, after_revision: int = -1) -> list[ErasedRow]:
        """Return the decisions that were deleted after a revision, by rising revision."""
        with self._database.read_snapshot() as unit_of_work:
            return [ErasedRow(*row) for row in self._erased.all(unit_of_work, {"after": after_revision})]

    def unchanged_until(self, revision: int, erased_revision: int) -> tuple[int, int, set[str]]:
        """Return the decisions that last changed up to a revision: their number, and the sum of their revisions.

        Also returns the ids of those that changed after it, or were deleted after `erased_revision`.
        """
        column, erased = decisions.c, deleted_decisions.c
        unchanged = sa.select(sa.func.count(), sa.func.coalesce(sa.func.sum(column.revision), 0))
        changed = sa.select(column.id).where(column.revision > revision)
        deleted = sa.select(erased.id).where(erased.revision > erased_revision)
        with self._database.read_snapshot() as unit_of_work:
            count, total = unit_of_work.execute(unchanged.where(column.revision <= revision)).one()
            return count, int(total), {*unit_of_work.execute(sa.union(changed, deleted)).scalars()}

    def newest_revision(self) -> int:
        """Return the revision of the latest change, or -1 in an empty journal."""
        # By the driver, since searches ask.
        with self._database.open_driver_connection() as driver:
            (revisions,) = self._newest.fetch(driver, {})
        return int(max(revisions))

    def read_state(self) -> int:
        """Return a number that is a greater one after each change of a decision.

        Values that are read after the number are current for as long as the number stays the same.
        """
        if not self._counts_changes:
            return self.newest_revision()
        # Even a statement of microseconds gives the interpreter's lock away, for as long as other threads keep it.
        self._database.refuse_if_lost()
        return self._changes

    def count(self) -> int:
        with self._database.read_snapshot() as unit_of_work:
            number: int = unit_of_work.execute(sa.select(sa.func.count()).select_from(decisions)).scalar_one()
        return number

    def identity(self) -> str:
        with self._database.read_snapshot() as unit_of_work:
            name: str = unit_of_work.execute(sa.select(journal_identity.c.id)).scalar_one()
        return name

    def unembedded_decisions(self, model: str, limit: int) -> list[Decision]:
        return self._whole_decisions(UNEMBEDDED.limit(limit), model)

    def outdated_decisions(self, model: str, limit: int) -> list[Decision]:
        """Return whole decisions whose vectors of this model or whose terms were made by older rules."""
        return self._whole_decisions(OUTDATED.limit(limit), model)

    def embedded_decisions(self, model: str, ids: Sequence[str]) -> dict[str, Decision]:
        """Return the whole decisions of `ids` that have vectors of this model by the present rules, by id."""
        with self._database.read_snapshot() as unit_of_work:
            found = [
                key
                for chunk in sql_mapping.split_into_chunks(ids)
                for key in unit_of_work.execute(UP_TO_DATE, {"model": model, "ids": chunk}).scalars()
            ]
            return {key: entry.decision for key, entry in self.load(unit_of_work, found).items()}

    def _whole_decisions(self, query: sa.Select[Any], model: str) -> list[Decision]:
        with self._database.background_snapshot() as unit_of_work:
            ids: list[str] = list(unit_of_work.execute(query, {"model": model}).scalars())
            return [entry.decision for entry in self.load(unit_of_work, ids).values()]

    def put_vectors(self, unit_of_work: UnitOfWork, model: str, vectors: Sequence[tuple[str, PassageVectors]]) -> None:
        """Store the vectors of decisions by id, replacing those of any model."""
        for chunk in sql_mapping.split_into_chunks(vectors):
            ids = [key for key, _ in chunk]
            unit_of_work.execute(sa.delete(decision_vectors).where(decision_vectors.c.decision_id.in_(ids)))
            unit_of_work.execute(sa.insert(decision_vectors), [vectors_row(key, model, item) for key, item in chunk])

    def find_recorded(self, unit_of_work: UnitOfWork, agent: str, idempotency_key: str) -> JournalEntry | None:
        row = unit_of_work.execute(BY_KEY, {"agent": agent, "key": idempotency_key}).one_or_none()
        return None if row is None else self._entries(unit_of_work, [row])[row.id]

    def load(self, unit_of_work: UnitOfWork, ids: Sequence[str]) -> dict[str, JournalEntry]:
        entries: dict[str, JournalEntry] = {}
        for chunk in sql_mapping.split_into_chunks([replace_unstorable(key) for key in ids]):
            entries |= self._entries(unit_of_work, unit_of_work.execute(BY_ID, {"ids": chunk}).all())
        return entries

    def insert(self, unit_of_work: UnitOfWork, entries: Sequence[tuple[JournalEntry, int]], at: datetime) -> None:
        """Insert decisions with their revisions; their links are stored separately."""
        rows = [
            {**sql_mapping.entry_to_columns(entry, revision, at), "created_at": entry.recorded_at or at}
            for entry, revision in entries
        ]
        if rows:
            self._note_change(unit_of_work)
            unit_of_work.execute(sa.insert(decisions), rows)
            self._add_tags_and_terms(unit_of_work, entries)
            insert_deadlines(unit_of_work, [entry.decision for entry, _ in entries])

    def update(self, unit_of_work: UnitOfWork, entries: Sequence[tuple[JournalEntry, int]], at: datetime) -> None:
        """Replace decisions and their revisions; their links stay unchanged."""
        rows = [
            {**sql_mapping.entry_to_columns(entry, revision, at), "key": entry.decision.id}
            for entry, revision in entries
        ]
        if not rows:
            return
        self._note_change(unit_of_work)
        unit_of_work.execute(sa.update(decisions).where(decisions.c.id == sa.bindparam("key")), rows)
        for chunk in sql_mapping.split_into_chunks([entry.decision.id for entry, _ in entries]):
            unit_of_work.execute(sa.delete(decision_tags).where(decision_tags.c.decision_id.in_(chunk)))
            unit_of_work.execute(sa.delete(decision_terms).where(decision_terms.c.decision_id.in_(chunk)))
            delete_deadlines(unit_of_work, chunk)
        self._add_tags_and_terms(unit_of_work, entries)
        insert_deadlines(unit_of_work, [entry.decision for entry, _ in entries])

    def delete(self, unit_of_work: UnitOfWork, decision_id: str) -> set[str]:
        """Remove a decision with its vectors, its terms and all links from and to it.

        Returns the ids that were superseded by it, or by a link that it declared.
        """
        link = decision_links.c
        superseded_by_it = sa.select(link.to_id).where(
            link.type == sql_links.SUPERSEDES, sa.or_(link.from_id == decision_id, link.declared_by == decision_id)
        )
        targets = set(unit_of_work.execute(superseded_by_it).scalars())
        touching = sa.or_(link.declared_by == decision_id, link.from_id == decision_id, link.to_id == decision_id)
        sql_links.suspend_links(unit_of_work, decision_id)
        unit_of_work.execute(sa.delete(decision_links).where(touching))
        unit_of_work.execute(sa.delete(suspended_links).where(suspended_links.c.declared_by == decision_id))
        for table in (decision_tags, decision_terms, decision_vectors, prepared_vectors, review_deadlines):
            unit_of_work.execute(sa.delete(table).where(table.c.decision_id == decision_id))
        self._note_change(unit_of_work)
        unit_of_work.execute(sa.delete(decisions).where(decisions.c.id == decision_id))
        return targets

    def restore_links(self, unit_of_work: UnitOfWork, ids: Sequence[str]) -> set[str]:
        """Bring back the links that the deletion of decisions took away, and return the ids that they supersede.

        These are links that other decisions of the same agent declare and that were imported.
        """
        return sql_links.restore_links(unit_of_work, ids)

    def touching_links(self, ids: Sequence[str], limit: int) -> list[DecisionLink]:
        """Return links from or to decisions, at most `limit`, each once and in order."""
        found: set[DecisionLink] = set()
        with self._database.read_snapshot() as unit_of_work:
            for chunk in sql_mapping.split_into_chunks(ids):
                rows = unit_of_work.execute(sql_links.TOUCHING, {"ids": chunk, "limit": limit})
                found.update(DecisionLink(from_id, LinkType(kind), to_id) for from_id, kind, to_id in rows)
        return sorted(found)[:limit]

    def add_links(self, unit_of_work: UnitOfWork, links: Sequence[DecisionLink]) -> None:
        """Add links that the decisions that they lead from declare; those that these declare already stay."""
        declared = sa.delete(decision_links).where(
            decision_links.c.declared_by == decision_links.c.from_id, sql_links.SAME_LINK
        )
        for link in links:
            unit_of_work.execute(declared, sql_links.link_parameters(link))
        rows = [{"declared_by": link.from_id, **asdict(link)} for link in links]
        if rows:
            unit_of_work.execute(sa.insert(decision_links), rows)

    def remove_links(self, unit_of_work: UnitOfWork, agent: str, links: Sequence[DecisionLink]) -> set[str]:
        """Remove links that decisions of an agent declare, and return the ids of these decisions."""
        declaring: set[str] = set()
        own = sa.select(decisions.c.id).where(
            decisions.c.id == decision_links.c.declared_by, decisions.c.agent == agent
        )
        for link in links:
            removed = sa.delete(decision_links).where(sql_links.SAME_LINK, own.exists())
            query = removed.returning(decision_links.c.declared_by)
            declaring.update(unit_of_work.execute(query, sql_links.link_parameters(link)).scalars())
        return declaring

    def declare(self, unit_of_work: UnitOfWork, declarations: Sequence[DeclaredLinks]) -> set[str]:
        """Replace the links that decisions declare and return the ids that are, or were, superseded by them."""
        return sql_links.replace_links(unit_of_work, declarations)

    def find_successors(self, ids: Sequence[str]) -> dict[str, list[str]]:
        """Return the ids of the decisions that supersede those of `ids`, by links of the same agent."""
        with self._database.read_snapshot() as unit_of_work:
            return sql_links.find_successor_ids(unit_of_work, ids)

    def find_superseded(self, unit_of_work: UnitOfWork, ids: Sequence[str]) -> set[str]:
        """Return the ids that a link declared by the same agent supersedes."""
        return sql_links.find_superseded_ids(unit_of_work, ids)

    def find_summaries(self, unit_of_work: UnitOfWork, agent: str, ids: Sequence[str]) -> list[str]:
        """Return the ids of an agent's summaries that cite decisions, which may be missing."""
        return sql_links.find_summary_ids(unit_of_work, agent, ids)

    def find_removable(self, unit_of_work: UnitOfWork, conditions: RemovalFilter, limit: int) -> list[str]:
        """Return the ids of up to `limit` decisions that meet conditions, the longest unchanged first."""
        column, query = decisions.c, sa.select(decisions.c.id)
        if conditions.agent is not None:
            query = query.where(column.agent == replace_unstorable(conditions.agent))
        if conditions.except_agent is not None:
            query = query.where(column.agent != conditions.except_agent)
        if conditions.unchanged_since is not None:
            query = query.where(column.updated_at < conditions.unchanged_since)
        return list(unit_of_work.execute(query.order_by(column.updated_at).limit(limit)).scalars())

    def changed_rows(self, unit_of_work: UnitOfWork, model: str, ids: Sequence[str]) -> list[IndexRow]:
        """Return the rows that `index_rows_of` will return once the transaction is committed."""
        query = ROWS.where(OF_IDS)
        rows = [
            sql_mapping.index_row_from_row(row)
            for chunk in sql_mapping.split_into_chunks(ids)
            for row in unit_of_work.execute(query, {"model": model, "ids": chunk})
        ]
        return sorted(rows, key=lambda row: row.revision)

    def _note_change(self, unit_of_work: UnitOfWork) -> None:
        if self._counts_changes:
            # Not before the commit: a reader of the number could then still read the former rows.
            unit_of_work.call_at_end(self._count_change)

    def _count_change(self) -> None:
        self._changes += 1

    @staticmethod
    def _entries(unit_of_work: UnitOfWork, rows: Sequence[sql_mapping.AnyRow]) -> dict[str, JournalEntry]:
        ids = [row.id for row in rows]
        links, deadlines = sql_links.read_links(unit_of_work, ids), read_deadlines(unit_of_work, ids)
        return {row.id: sql_mapping.entry_from_row(row, links[row.id], deadlines.get(row.id)) for row in rows}

    @staticmethod
    def _add_tags_and_terms(unit_of_work: UnitOfWork, entries: Sequence[tuple[JournalEntry, int]]) -> None:
        rows = [{"decision_id": entry.decision.id, "tag": tag} for entry, _ in entries for tag in entry.decision.tags]
        if rows:
            unit_of_work.execute(sa.insert(decision_tags), rows)
        unit_of_work.execute(sa.insert(decision_terms), [terms_row(entry.decision) for entry, _ in entries])


def terms_row(decision: Decision) -> dict[str, object]:
    terms = cached_terms(SearchedContent.of(decision))
    return {"decision_id": decision.id, "version": ANALYSIS_VERSION, "terms": terms.tobytes()}


def vectors_row(decision_id: str, model: str, passages: PassageVectors) -> dict[str, object]:
    return {
        "decision_id": decision_id,
        "model": model,
        "format": PASSAGE_FORMAT,
        "passages": len(passages.vectors),
        "has_lesson": passages.has_lesson,
        "vector": sql_mapping.encode_vectors(passages.vectors),
    }


def estimate_decision_size(decision: Decision) -> int:
    """Return the estimated number of bytes that a decision takes in a message."""
    linked = (other for kind in LinkType for other in getattr(decision.links, kind))
    return estimate_message_bytes((decision.id, decision.agent, decision.source, *content_texts(decision), *linked))
