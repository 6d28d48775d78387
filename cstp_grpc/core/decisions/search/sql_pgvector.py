"""A search engine in PostgreSQL: vectors in a graph of pgvector, and words in an inverted index.

Each journal and model has a table with a row for each passage of its decisions, and all columns that filters need.
docs/adr/0039 has the measurements behind the numbers here.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.compiler import compiles

from cstp_grpc.common.lazy_dataclass import dataclass, replace
from cstp_grpc.common.unicode_text import replace_unstorable
from cstp_grpc.contract.enums import Outcome, Visibility
from cstp_grpc.core.decisions import sql_mapping
from cstp_grpc.core.decisions.model import DecisionFilter
from cstp_grpc.core.decisions.read_policy import ReadPolicy
from cstp_grpc.core.decisions.search import search_engine
from cstp_grpc.core.decisions.search.sql_pgvector_rows import (
    COLLECTIONS,
    COLUMNS,
    COPIED_TYPES,
    FACETED,
    INDEXES,
    LAYOUT,
    METADATA,
    NUMBERS,
    TERMS,
    TEXTS,
    HalfVector,
    facet_numbers,
    passage_values,
    signed_terms,
)
from cstp_grpc.core.decisions.store import IndexRow, Vector
from cstp_grpc.platform.storage.database import Database, create_postgresql_engine, parse_database_url
from cstp_grpc.platform.storage.unit_of_work import get_driver_connection

NOTHING_FILTERED: Final = DecisionFilter()

TOTAL: Final = -1
"""Stands in the table of terms for the number of decisions; hashes are not negative."""
EVERYONE: Final = ""
"""Stands there for the readers of shared decisions; no agent has this name."""

MAX_COUNTED: Final = 5000
"""Decisions that are counted for a peer, whose scores must not depend on others."""

EXEMPLARY: Final = 20
"""Failures and lessons that are proposed each."""

EXACT_FACTOR: Final = 7.0
"""How many times longer visiting a passage by the graph takes than comparing one that is known to pass (measured)."""

MAX_WORD_PROPOSALS: Final = 100
"""Decisions that are proposed by words at most. Measured with a million of random words: 60 find 1 % fewer."""

SESSION: Final = " ".join(
    f"-c {setting}"
    for setting in (
        # Measured with a million passages: with 100, .90 of the ten nearest are found, with 400 .97 in 9 ms.
        "hnsw.ef_search=400",
        # As for Chroma; feeding has no limit.
        "statement_timeout=5s",
        # In strict order results are left out under filters (measured).
        "hnsw.iterative_scan=relaxed_order",
        "jit=off",
        # A plan for any filter would suit none.
        "plan_cache_mode=force_custom_plan",
        "max_parallel_workers_per_gather=0",
    )
)
"""Options of sessions."""

BUILD_MEGABYTES: Final = 2048
"""Memory of PostgreSQL for building a graph, enough for a million passages. One that does not fit is built ten times as
slowly."""

UNUSED: Final = timedelta(days=7)
"""Time without feeding after which the rows of another model of the same journal are dropped."""


def open_engine_database(url: str, pool_size: int) -> Database:
    """Return the database of an engine. Raises UnsuitableDatabase; a missing one is detected at its first use."""
    return Database(create_postgresql_engine(parse_database_url(url, "search.url"), pool_size, SESSION), None)


def check_database(url: str) -> None:
    """Check that a database answers and has pgvector. Raises EngineFailed and UnsuitableDatabase."""
    database = open_engine_database(url, 1)
    with closing(database), translate_errors(database), database.engine.connect() as connection:
        extensions = sa.table("pg_available_extensions", sa.column("name"))
        found = sa.select(extensions.c.name).where(extensions.c.name == "vector")
        if connection.execute(found).first() is None:
            raise search_engine.EngineFailed("PostgreSQL has no pgvector; install its extension `vector`")


@contextmanager
def translate_errors(database: Database) -> Iterator[None]:
    """Raise EngineFailed instead of errors of the database or its driver, which copies rows."""
    try:
        yield
    except (SQLAlchemyError, database.dialect.loaded_dbapi.Error) as error:
        # Without the lines after it, which may have a row.
        raise search_engine.EngineFailed(str(getattr(error, "orig", None) or error).partition("\n")[0]) from error


@dataclass(frozen=True, slots=True, eq=False)
class Collection:
    """The rows of one journal and model, and how far they were fed."""

    id: int
    revision: int
    complete: bool

    @property
    def name(self) -> str:
        return row_table(self.id)

    @property
    def rows(self) -> sa.TableClause:
        return sa.table(self.name, *(sa.column(name, kind) for name, kind in COLUMNS.items()))


ROW_TABLES: Final = "cstp_search_rows_"


def row_table(collection: int) -> str:
    return f"{ROW_TABLES}{collection}"


class PgvectorEngine:
    """The decisions of one journal in PostgreSQL; fulfils `SearchEngine`."""

    def __init__(self, database: Database, journal: str, model: str, dimensions: int, sharing: ReadPolicy) -> None:
        self._writes = database
        # Proposals and the revision that they are for must be of one snapshot.
        self._reads = database.with_repeatable_reads()
        self._journal = journal
        self._model = f"{model} {LAYOUT:x}"
        self._dimensions = dimensions
        self._sharing = sharing

    def close(self) -> None:
        self._writes.close()

    def propose(self, request: search_engine.ProposalRequest) -> search_engine.Proposals:
        with self._read() as (connection, collection):
            reader = RowReader(connection, collection.rows, self._sharing, request.caller, request.filters)
            found = reader.nearest(request.vector, request.count)
            more = len(found) == request.count
            if request.rare:
                found += reader.with_words(request)
            if request.exemplary:
                failed = sa.cast(facet_numbers("outcome", [Outcome.FAILURE]), NUMBERS)
                for exemplary in (reader.rows.c.facets.contains(failed), reader.rows.c.has_lesson):
                    found += reader.nearest(request.vector, EXEMPLARY, exemplary)
        return search_engine.Proposals(list(dict.fromkeys(found)), collection.revision, more)

    def read_statistics(self, hashes: Sequence[int], caller: str) -> search_engine.TermStatistics:
        with self._read() as (connection, collection):
            if self._sharing.is_restricted_peer(caller):
                reader = RowReader(connection, collection.rows, self._sharing, caller, NOTHING_FILTERED)
                return reader.count_terms(hashes)
            query = sa.select(TERMS.c.term, sa.func.sum(TERMS.c.decisions)).where(
                TERMS.c.collection == collection.id,
                TERMS.c.reader.in_((EVERYONE, caller)),
                TERMS.c.term.in_((TOTAL, *hashes)),
            )
            counts = {int(term): int(count) for term, count in connection.execute(query.group_by(TERMS.c.term))}
        return search_engine.TermStatistics(counts.pop(TOTAL, 0), counts)

    def sample(self, caller: str, count: int) -> Sequence[str]:
        with self._read() as (connection, collection):
            column = collection.rows.c
            # Ids say nothing about the content, so that the first ones are a sample; for either part there is an index.
            parts = [
                sa.select(column.decision_id)
                .where(column.place == 0, which)
                .order_by(column.decision_id)
                .limit(count)
                .subquery()
                for which in (column.visibility == Visibility.SHARED.value, column.agent == caller)
            ]
            found = sa.union(*map(sa.select, parts)).subquery()
            return list(connection.execute(sa.select(found).order_by(found.c.decision_id).limit(count)).scalars())

    @contextmanager
    def begin_feeding(self) -> Iterator[search_engine.Feeding | None]:
        with translate_errors(self._writes), self._writes.engine.begin() as connection:
            collection = self._find_collection(connection)
            if collection is None:
                collection = self._create_collection(connection)
            connection.execute(sa.text("SET LOCAL statement_timeout = 0"))
            # Locked until the end; another process that feeds has it, or had it since it was read.
            locked = sa.select(COLLECTIONS.c.revision).where(COLLECTIONS.c.id == collection.id)
            revision = connection.execute(locked.with_for_update(skip_locked=True)).scalar_one_or_none()
            is_ours = revision == collection.revision
            yield PgvectorFeeding(connection, collection, self._journal) if is_ours else None

    @contextmanager
    def _read(self) -> Iterator[tuple[sa.Connection, Collection]]:
        with translate_errors(self._writes), self._reads.engine.connect() as connection:
            collection = self._find_collection(connection)
            if collection is None or not collection.complete:
                raise search_engine.EngineIncomplete
            yield connection, collection

    def _find_collection(self, connection: sa.Connection) -> Collection | None:
        # Without an error if nothing has been created yet.
        if connection.execute(sa.select(sa.func.to_regclass(COLLECTIONS.name))).scalar_one() is None:
            return None
        column = COLLECTIONS.c
        query = sa.select(column.id, column.revision, column.complete)
        of_ours = query.where(column.journal == self._journal, column.model == self._model)
        row = connection.execute(of_ours).one_or_none()
        return None if row is None else Collection(*row)

    def _create_collection(self, connection: sa.Connection) -> Collection:
        # Of several processes that begin at the same time, one creates it.
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(sa.func.hashtext(COLLECTIONS.name))))
        connection.execute(sa.text("CREATE EXTENSION IF NOT EXISTS vector"))
        METADATA.create_all(connection)
        if (found := self._find_collection(connection)) is not None:
            return found
        row = {"journal": self._journal, "model": self._model, "revision": -1, "complete": False}
        added = sa.insert(COLLECTIONS).values(**row, fed_at=sa.func.now()).returning(COLLECTIONS.c.id)
        created = Collection(connection.execute(added).scalar_one(), -1, complete=False)
        table = sa.Table(created.name, sa.MetaData(), *(sa.Column(name, kind) for name, kind in COLUMNS.items()))
        table.append_constraint(sa.PrimaryKeyConstraint("decision_id", "place"))
        table.create(connection)
        sized = f"ALTER TABLE {created.name} ALTER COLUMN vector TYPE HALFVEC({self._dimensions})"
        connection.execute(sa.text(sized))
        return created


class Explained(sa.Executable, sa.ClauseElement):
    """The plan of a query, as JSON."""

    inherit_cache = False

    def __init__(self, query: sa.Select[Any]) -> None:
        self.query = query


@compiles(Explained)
def compile_explained(element: Explained, compiler: Any, **options: Any) -> str:
    return f"EXPLAIN (FORMAT JSON) {compiler.process(element.query, **options)}"


@dataclass(frozen=True, slots=True, eq=False)
class RowReader:
    """Reads the rows of a collection that a caller may read and that pass a filter."""

    connection: sa.Connection
    rows: sa.TableClause
    sharing: ReadPolicy
    caller: str
    filters: DecisionFilter

    def nearest(self, vector: Vector, count: int, *more: sa.ColumnElement[bool]) -> list[str]:
        """Return the decisions of the `count` nearest passages that meet more conditions."""
        conditions = [*self._conditions(self.rows), *more]
        distance = self.rows.c.vector.op("<#>")(sa.cast(sa.bindparam("vector", vector, HalfVector()), HalfVector()))
        query = sa.select(self.rows.c.decision_id).where(*conditions).limit(count)
        # The graph visits `size / passing` passages for each that passes.
        if self._estimate(conditions) > math.sqrt(EXACT_FACTOR * count * self._estimate([])):
            found = self._ids(query.order_by(distance))
            # The graph gives up if too few pass. If there are no more, they are few to compare.
            if len(found) == count:
                return found
        return self._ids(query.order_by(distance.op("+")(sa.literal_column("0"))))

    def with_words(self, request: search_engine.ProposalRequest) -> list[str]:
        """Return the decisions that have most of the words of a request."""
        terms = sa.cast(signed_terms(list(request.weights)), NUMBERS)
        weights = sa.cast(list(request.weights.values()), postgresql.ARRAY(sa.REAL))
        asked = sa.func.unnest(terms, weights).table_valued("term", "weight", name="asked").render_derived()
        has_rare = self.rows.c.terms.overlap(sa.cast(signed_terms(list(request.rare)), NUMBERS))
        # First of all, since few have a rare word, and to find all that pass a wide filter takes longer.
        columns = [column for column in self.rows.c if column.name != "vector"]
        found = sa.select(*columns).where(has_rare).cte("found").prefix_with("MATERIALIZED")
        weight = sa.select(sa.func.sum(asked.c.weight)).where(asked.c.term == sa.any_(found.c.terms))
        query = sa.select(found.c.decision_id).where(*self._conditions(found))
        return self._ids(query.order_by(weight.scalar_subquery().desc()).limit(min(request.count, MAX_WORD_PROPOSALS)))

    def count_terms(self, hashes: Sequence[int]) -> search_engine.TermStatistics:
        """Count the decisions, and those of them that have each term; at most MAX_COUNTED each."""
        conditions = [*self._conditions(self.rows), self.rows.c.place == 0]
        asked = (
            sa.func.unnest(sa.cast(signed_terms(hashes), NUMBERS)).table_valued("term", name="asked").render_derived()
        )
        counted = sa.select(sa.literal(1)).select_from(self.rows).where(*conditions)
        having = counted.where(self.rows.c.terms.contains(postgresql.array([asked.c.term]))).correlate(asked)
        total, with_term = (
            sa.select(sa.func.count()).select_from(query.limit(MAX_COUNTED).subquery().lateral()).scalar_subquery()
            for query in (counted, having)
        )
        rows = self.connection.execute(sa.select(total, asked.c.term, with_term), {"caller": self.caller}).all()
        counts = {int(term) & 0xFFFFFFFF: int(count) for _, term, count in rows}
        return search_engine.TermStatistics(int(rows[0][0]) if rows else 0, counts)

    def _conditions(self, rows: Any) -> list[sa.ColumnElement[bool]]:
        filtered = sql_mapping.FilteredRows(rows.c, lambda tags: rows.c.tags.overlap(sa.cast(tags, TEXTS)))
        readable = sql_mapping.readable_condition(self.sharing, self.caller, filtered)
        others = replace(self.filters, **{name: getattr(NOTHING_FILTERED, name) for name in FACETED})
        return [readable, *sql_mapping.filter_conditions(others, filtered), *self._facet_conditions(rows)]

    def _facet_conditions(self, rows: Any) -> Iterator[sa.ColumnElement[bool]]:
        for name in FACETED:
            wanted = getattr(self.filters, name)
            values = [wanted] if isinstance(wanted, str) else wanted or ()
            if values:
                # Of tags all, of other values any.
                meets = rows.c.facets.contains if name == "tags" or len(values) == 1 else rows.c.facets.overlap
                yield meets(sa.cast(facet_numbers(name, map(replace_unstorable, values)), NUMBERS))

    def _estimate(self, conditions: Sequence[sa.ColumnElement[bool]]) -> float:
        """Return how many rows meet conditions, by the statistics of PostgreSQL."""
        explained = Explained(sa.select(self.rows.c.decision_id).where(*conditions))
        plan = self.connection.execute(explained, {"caller": self.caller}).scalar_one()
        return float(plan[0]["Plan"]["Plan Rows"])

    def _ids(self, query: sa.Select[Any]) -> list[str]:
        return list(self.connection.execute(query, {"caller": self.caller}).scalars())


class PgvectorFeeding:
    """A transaction that changes the rows of a collection; fulfils `Feeding`."""

    def __init__(self, connection: sa.Connection, collection: Collection, journal: str) -> None:
        self._connection = connection
        self._collection = collection
        self._journal = journal

    @property
    def revision(self) -> int:
        return self._collection.revision

    def put(self, rows: Sequence[IndexRow], erased: Sequence[str], revision: int) -> None:
        counts: Counter[tuple[str, int]] = Counter()
        self._remove([*(row.decision_id for row in rows), *erased], counts)
        driver: Any = get_driver_connection(self._connection)
        # In its binary format, in which vectors take a tenth of the time.
        copying = f"COPY {self._collection.name} ({', '.join(COLUMNS)}) FROM STDIN (FORMAT BINARY)"
        with driver.cursor() as cursor, cursor.copy(copying) as copy:
            copy.set_types(COPIED_TYPES)
            for row in rows:
                count_decision(counts, row.visibility, row.agent, row.terms["hash"].tolist(), 1)
                for values in passage_values(row):
                    copy.write_row(values)
        self._add_counts(counts)
        self._update(revision=revision, fed_at=sa.func.now())

    def complete(self) -> None:
        if self._collection.complete:
            return
        name = self._collection.name
        indexes = [f"CREATE INDEX ON {name} {index}" for index in INDEXES]
        # The statistics are for the estimates of how many rows pass a filter.
        for statement in (f"SET LOCAL maintenance_work_mem = '{BUILD_MEGABYTES}MB'", *indexes, f"ANALYZE {name}"):
            self._connection.execute(sa.text(statement))
        self._update(complete=True)
        column = COLLECTIONS.c
        unused = sa.delete(COLLECTIONS).where(
            column.journal == self._journal,
            column.id != self._collection.id,
            column.fed_at < datetime.now(UTC) - UNUSED,
        )
        for old in self._connection.execute(unused.returning(column.id)).scalars().all():
            self._connection.execute(sa.text(f"DROP TABLE {row_table(old)}"))
            self._connection.execute(sa.delete(TERMS).where(TERMS.c.collection == old))

    def _update(self, **values: object) -> None:
        updated = sa.update(COLLECTIONS).where(COLLECTIONS.c.id == self._collection.id)
        self._connection.execute(updated.values(**values))

    def _remove(self, ids: Sequence[str], counts: Counter[tuple[str, int]]) -> None:
        # None are there in a collection that is filled for the first time.
        if self.revision < 0 and not self._collection.complete:
            return
        rows = self._collection.rows
        of_ids = rows.c.decision_id == sa.any_(sa.cast(list(ids), TEXTS))
        first = sa.select(rows.c.agent, rows.c.visibility, rows.c.terms).where(of_ids, rows.c.place == 0)
        for agent, visibility, terms in self._connection.execute(first):
            count_decision(counts, Visibility(visibility), agent, (term & 0xFFFFFFFF for term in terms), -1)
        self._connection.execute(sa.delete(rows).where(of_ids))

    def _add_counts(self, counts: Counter[tuple[str, int]]) -> None:
        changed = [(*key, count) for key, count in counts.items() if count]
        if not changed:
            return
        readers, terms, numbers = (list(column) for column in zip(*changed, strict=True))
        longs = postgresql.ARRAY(sa.BigInteger)
        arrays = sa.cast(readers, TEXTS), sa.cast(terms, longs), sa.cast(numbers, NUMBERS)
        added = sa.func.unnest(*arrays).table_valued("reader", "term", "decisions", name="added").render_derived()
        values = sa.select(sa.literal(self._collection.id), added.c.reader, added.c.term, added.c.decisions)
        insertion = postgresql.insert(TERMS).from_select([column.name for column in TERMS.c], values)
        total = TERMS.c.decisions + insertion.excluded.decisions
        self._connection.execute(
            insertion.on_conflict_do_update(constraint=TERMS.primary_key, set_={"decisions": total})
        )


def count_decision(
    counts: Counter[tuple[str, int]], visibility: Visibility, agent: str, terms: Iterable[int], added: int
) -> None:
    """Count a decision and its terms for those who may read it."""
    reader = EVERYONE if visibility is Visibility.SHARED else agent
    for term in (TOTAL, *terms):
        counts[reader, term] += added
