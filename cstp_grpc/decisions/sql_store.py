"""Decisions in an SQL database."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

from sqlalchemy import Connection, Engine, bindparam, delete, exists, func, insert, select, update

from cstp_grpc.decisions.filters import predicate_of
from cstp_grpc.decisions.model import Decision, DecisionFilter
from cstp_grpc.decisions.sharing import Sharing
from cstp_grpc.decisions.sql_filters import LATEST_FIRST, after_token, conditions, may_read, page_token
from cstp_grpc.decisions.sql_links import declare, links_of, superseded
from cstp_grpc.decisions.sql_rows import (
    INDEXED,
    LISTED,
    WHOLE,
    chunks,
    index_row,
    listed,
    values,
    vector_bytes,
    whole,
)
from cstp_grpc.decisions.sql_summaries import SummaryReader
from cstp_grpc.decisions.store import EMBEDDED_CONTEXT, Declaration, Entry, IndexRow, Vector, embedded_text
from cstp_grpc.storage.driver_statement import DriverStatement
from cstp_grpc.storage.paging import Page, PageRequest, estimated_size, fitting
from cstp_grpc.storage.reading import reading
from cstp_grpc.storage.tables import decision_tags, decision_vectors, decisions, journal_identity
from cstp_grpc.storage.text import storable

FETCH = 1000
"""How many rows are in memory at once while all are read."""

# Statements that are built once, because building them costs as much as running them.
OF_IDS = decisions.c.id.in_(bindparam("ids", expanding=True))
BY_ID = select(*WHOLE).where(OF_IDS)
BY_KEY = select(*WHOLE).where(decisions.c.agent == bindparam("agent"), decisions.c.idempotency_key == bindparam("key"))
TEXT = select(decisions.c.id, decisions.c.title, func.substr(decisions.c.context, 1, EMBEDDED_CONTEXT))
OF_MODEL = decision_vectors.c.model == bindparam("model")
ROWS = select(*INDEXED).join_from(decisions, decision_vectors).where(OF_MODEL).order_by(decisions.c.revision)
NEWEST_REVISION = select(func.coalesce(func.max(decisions.c.revision), -1))


class SqlDecisionStore:
    """Keeps decisions in SQLite or PostgreSQL; fulfils `DecisionStore`."""

    def __init__(self, engine: Engine, sharing: Sharing) -> None:
        self._engine = engine
        self._sharing = sharing
        self._summaries = SummaryReader(engine)
        self._newest = DriverStatement(NEWEST_REVISION, engine.dialect)

    @property
    def is_local(self) -> bool:
        """Whether the database is a file of this machine."""
        return self._engine.dialect.name == "sqlite"

    def get(self, decision_id: str) -> Decision | None:
        """Return a decision whole, whoever may read it."""
        with reading(self._engine) as connection:
            entry = self.load(connection, [decision_id]).get(decision_id)
        return entry.decision if entry else None

    def may_read(self, decision: Decision, caller: str) -> bool:
        """Whether an agent may read a decision."""
        return self._sharing.may_read(decision, caller)

    def readable(self, ids: Sequence[str], caller: str, filters: DecisionFilter) -> dict[str, Decision]:
        """Return those of `ids` that the caller may read and that pass the filters, by id."""
        passes = predicate_of(filters)
        # The filters are applied here: in SQL they would tempt SQLite to walk an index instead of looking up the ids.
        found = self._summaries.read(ids) if ids else []
        return {item.id: item for item in found if self._sharing.may_read(item, caller) and passes(item)}

    def page(self, caller: str, filters: DecisionFilter, request: PageRequest) -> Page[Decision]:
        """Return the decisions that the caller may read and that pass the filters, latest first, then by id."""
        listing = (filters, caller)
        shown_to_caller = may_read(self._sharing, caller)
        query = select(*LISTED).where(shown_to_caller, *conditions(filters))
        query = query.order_by(*LATEST_FIRST).limit(request.limit + 1)
        if request.token:
            query = query.where(after_token(request.token, listing))
        with reading(self._engine) as connection:
            rows = connection.execute(query, {"caller": caller}).all()
            links = links_of(connection, [row.id for row in rows])
        shown = [listed(row, links[row.id], caller) for row in rows[: request.limit]]
        shown = shown[: fitting(shown, size_of)]
        return Page(tuple(shown), page_token(shown[-1], listing) if len(rows) > len(shown) else "")

    def index_rows(self, model: str, after_revision: int = -1) -> Iterator[IndexRow]:
        """Yield the decisions that have a vector of this model and changed after a revision, by rising revision."""
        query = ROWS.where(decisions.c.revision > after_revision).execution_options(yield_per=FETCH)
        with reading(self._engine) as connection:
            yield from map(index_row, connection.execute(query, {"model": model}))

    def index_rows_of(self, model: str, ids: Sequence[str]) -> list[IndexRow]:
        """Return those of `ids` that have a vector of this model, by rising revision."""
        with reading(self._engine) as connection:
            return self.changed_rows(connection, model, ids)

    def newest_revision(self) -> int:
        """Return the revision of the decision that changed last; -1 if there is none."""
        with reading(self._engine) as connection:
            ((newest,),) = self._newest.all(connection, {})
        return int(newest)

    def identity(self) -> str:
        """Return the name of the journal, which no other has."""
        with reading(self._engine) as connection:
            name: str = connection.execute(select(journal_identity.c.id)).scalar_one()
        return name

    def stale_vectors(self, model: str, limit: int) -> list[tuple[str, str]]:
        """Return the id and the text to embed of decisions that have no vector of this model."""
        present = exists().where(decision_vectors.c.decision_id == decisions.c.id, OF_MODEL)
        query = TEXT.where(~present).order_by(decisions.c.id).limit(limit)
        with reading(self._engine) as connection:
            return [
                (key, embedded_text(title, context))
                for key, title, context in connection.execute(query, {"model": model})
            ]

    def embedded_texts(self, model: str, ids: Sequence[str]) -> dict[str, str]:
        """Return the text that was embedded for those of `ids` that have a vector of this model."""
        query = TEXT.join_from(decisions, decision_vectors).where(OF_MODEL, OF_IDS)
        found: dict[str, str] = {}
        with reading(self._engine) as connection:
            for chunk in chunks(ids):
                for key, title, context in connection.execute(query, {"model": model, "ids": chunk}):
                    found[key] = embedded_text(title, context)
        return found

    def put_vectors(self, connection: Connection, model: str, vectors: Sequence[tuple[str, Vector]]) -> None:
        """Set the vectors of decisions by id; they replace those of any model."""
        for chunk in chunks(vectors):
            ids = [key for key, _ in chunk]
            connection.execute(delete(decision_vectors).where(decision_vectors.c.decision_id.in_(ids)))
            rows = [{"decision_id": key, "model": model, "vector": vector_bytes(vector)} for key, vector in chunk]
            connection.execute(insert(decision_vectors), rows)

    def find_recorded(self, connection: Connection, agent: str, idempotency_key: str) -> Entry | None:
        """Return the decision that an agent recorded under a key."""
        row = connection.execute(BY_KEY, {"agent": agent, "key": idempotency_key}).one_or_none()
        return None if row is None else whole(row, links_of(connection, [row.id])[row.id])

    def load(self, connection: Connection, ids: Sequence[str]) -> dict[str, Entry]:
        """Return entries by id."""
        entries: dict[str, Entry] = {}
        for chunk in chunks([storable(key) for key in ids]):
            rows = connection.execute(BY_ID, {"ids": chunk}).all()
            links = links_of(connection, [row.id for row in rows])
            entries.update((row.id, whole(row, links[row.id])) for row in rows)
        return entries

    def insert(self, connection: Connection, entries: Sequence[tuple[Entry, int]], at: datetime) -> None:
        """Add decisions with their revisions; their links are declared separately."""
        rows = [{**values(entry, revision, at), "created_at": at} for entry, revision in entries]
        if rows:
            connection.execute(insert(decisions), rows)
            self._add_tags(connection, entries)

    def update(self, connection: Connection, entries: Sequence[tuple[Entry, int]], at: datetime) -> None:
        """Replace decisions and their revisions; their links stay."""
        rows = [{**values(entry, revision, at), "key": entry.decision.id} for entry, revision in entries]
        if not rows:
            return
        connection.execute(update(decisions).where(decisions.c.id == bindparam("key")), rows)
        for chunk in chunks([entry.decision.id for entry, _ in entries]):
            connection.execute(delete(decision_tags).where(decision_tags.c.decision_id.in_(chunk)))
        self._add_tags(connection, entries)

    def declare(self, connection: Connection, declarations: Sequence[Declaration]) -> set[str]:
        """Replace the links that decisions declare and return the ids that are, or were, superseded by them."""
        return declare(connection, declarations)

    def superseded(self, connection: Connection, ids: Sequence[str]) -> set[str]:
        """Return those of `ids` that a link declared by the same agent says are superseded."""
        return superseded(connection, ids)

    def changed_rows(self, connection: Connection, model: str, ids: Sequence[str]) -> list[IndexRow]:
        """Return what `index_rows_of` will return once the transaction is committed."""
        query = ROWS.where(OF_IDS)
        rows = [
            index_row(row) for chunk in chunks(ids) for row in connection.execute(query, {"model": model, "ids": chunk})
        ]
        return sorted(rows, key=lambda row: row.revision)

    @staticmethod
    def _add_tags(connection: Connection, entries: Sequence[tuple[Entry, int]]) -> None:
        rows = [{"decision_id": entry.decision.id, "tag": tag} for entry, _ in entries for tag in entry.decision.tags]
        if rows:
            connection.execute(insert(decision_tags), rows)


def size_of(decision: Decision) -> int:
    """Return about how many bytes a decision takes in a message."""
    links = decision.links
    texts = (
        decision.id,
        decision.title,
        decision.agent,
        decision.context,
        decision.category,
        decision.notes,
        decision.project,
        decision.source,
    )
    reasons = (text for reason in decision.reasons for text in (reason.type, reason.text))
    return estimated_size((*texts, *reasons, *decision.tags, *links.supersedes, *links.depends_on, *links.relates_to))
