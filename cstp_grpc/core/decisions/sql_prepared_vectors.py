"""Prepared vectors in SQL."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import BindParameter, and_, bindparam, delete, exists, func, insert, or_, select

from cstp_grpc.core.decisions.read_policy import SHARE_WITH_ALL
from cstp_grpc.core.decisions.sql_mapping import split_into_chunks
from cstp_grpc.core.decisions.sql_store import SqlDecisionStore, vectors_row
from cstp_grpc.core.decisions.sql_tables import decision_vectors, decisions, prepared_vectors
from cstp_grpc.core.decisions.store import PreparedVectors, UnpreparedDecision
from cstp_grpc.platform.storage.database import Database
from cstp_grpc.platform.storage.unit_of_work import UnitOfWork

MODEL: BindParameter[str] = bindparam("model")
IN_USE = exists().where(decision_vectors.c.decision_id == decisions.c.id, decision_vectors.c.model == MODEL)
IS_PREPARED = exists().where(
    prepared_vectors.c.decision_id == decisions.c.id,
    prepared_vectors.c.model == MODEL,
    prepared_vectors.c.revision == decisions.c.revision,
)
UNPREPARED = ~or_(IN_USE, IS_PREPARED)
COUNT = select(func.count()).select_from(decisions)
UNPREPARED_COUNT = COUNT.where(UNPREPARED)
UNPREPARED_REVISIONS = select(decisions.c.id, decisions.c.revision).where(UNPREPARED).order_by(decisions.c.id)
REVISIONS_OF = select(decisions.c.id, decisions.c.revision).where(decisions.c.id.in_(bindparam("ids", expanding=True)))
ADOPTED = ("decision_id", "model", "format", "passages", "has_lesson", "vector")
ADOPTABLE = select(*(prepared_vectors.c[name] for name in ADOPTED)).join_from(
    prepared_vectors,
    decisions,
    and_(decisions.c.id == prepared_vectors.c.decision_id, decisions.c.revision == prepared_vectors.c.revision),
)


class SqlPreparedVectorStore:
    """Stores vectors of models that no search uses yet, in SQLite or PostgreSQL.

    Reads raise QueryFailed if the database does not respond.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._decisions = SqlDecisionStore(database, SHARE_WITH_ALL)

    def count_decisions(self) -> int:
        with self._database.read_snapshot() as unit_of_work:
            return int(unit_of_work.execute(COUNT).scalar_one())

    def count_unprepared(self, model: str) -> int:
        """Return the number of decisions that have no vector of a model in their present revision."""
        with self._database.read_snapshot() as unit_of_work:
            return int(unit_of_work.execute(UNPREPARED_COUNT, {"model": model}).scalar_one())

    def unprepared_decisions(self, model: str, limit: int) -> list[UnpreparedDecision]:
        """Return whole decisions that have no vectors of a model in their present revision, at most `limit`."""
        with self._database.read_snapshot() as unit_of_work:
            found = unit_of_work.execute(UNPREPARED_REVISIONS.limit(limit), {"model": model})
            revisions: dict[str, int] = {row.id: row.revision for row in found}
            entries = self._decisions.load(unit_of_work, list(revisions))
            return [UnpreparedDecision(entries[key].decision, revision) for key, revision in revisions.items()]

    def put(self, unit_of_work: UnitOfWork, model: str, vectors: Sequence[PreparedVectors]) -> None:
        """Store vectors of decisions that are still there in the same revision; the others are left out."""
        table = prepared_vectors.c
        for chunk in split_into_chunks(vectors):
            ids = [each.decision_id for each in chunk]
            present = {row.id: row.revision for row in unit_of_work.execute(REVISIONS_OF, {"ids": ids})}
            unit_of_work.execute(delete(prepared_vectors).where(table.model == model, table.decision_id.in_(ids)))
            rows = [
                {**vectors_row(each.decision_id, model, each.passages), "revision": each.revision}
                for each in chunk
                if present.get(each.decision_id) == each.revision
            ]
            if rows:
                unit_of_work.execute(insert(prepared_vectors), rows)

    def has_prepared(self, model: str) -> bool:
        with self._database.read_snapshot() as unit_of_work:
            found = select(exists().where(prepared_vectors.c.model == model))
            return bool(unit_of_work.execute(found).scalar_one())

    def adopt(self, unit_of_work: UnitOfWork, model: str) -> int:
        """Make the vectors of a model those that searches use, and return how many.

        Vectors of decisions that have changed since, and those of other models, are removed.
        """
        found = ADOPTABLE.where(prepared_vectors.c.model == model)
        count = int(unit_of_work.execute(select(func.count()).select_from(found.subquery())).scalar_one())
        if count:
            replaced = select(found.subquery().c.decision_id)
            unit_of_work.execute(delete(decision_vectors).where(decision_vectors.c.decision_id.in_(replaced)))
            unit_of_work.execute(insert(decision_vectors).from_select(ADOPTED, found))
        unit_of_work.execute(delete(prepared_vectors))
        return count
