"""The queue of changed decisions that the vector index has not indexed yet, in SQL."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Integer, bindparam, delete, func, insert, select

from cstp_grpc.common.lazy_dataclass import dataclass
from cstp_grpc.core.decisions.sql_tables import outbox
from cstp_grpc.platform.storage.database import Database
from cstp_grpc.platform.storage.unit_of_work import CompiledStatement, GlobalWriteLock, UnitOfWork
from cstp_grpc.platform.storage.writer import GroupCommitWriter

MAX_PARAMETERS = 1000
"""Change numbers in one statement. Chosen: far below the limits of parameters, 32 766 in SQLite and 65 535 in
PostgreSQL's protocol."""

OLDEST = select(outbox.c.seq, outbox.c.decision_id).order_by(outbox.c.seq).limit(bindparam("limit", type_=Integer))


@dataclass(frozen=True, slots=True)
class DecisionChange:
    """A changed decision; `seq` is the number of the change, its journal revision."""

    seq: int
    decision_id: str


class SqlChangeLog:
    """A queue of changes on disk, written in the transaction of each change, so that none is lost.

    Reads raise QueryFailed if the database does not respond, and leave it to the caller to log why.
    """

    def __init__(self, database: Database, writer: GroupCommitWriter) -> None:
        self._database = database
        self._writer = writer
        self._order = GlobalWriteLock(database.dialect)
        self._oldest = CompiledStatement(OLDEST, database.dialect)

    def hold(self, unit_of_work: UnitOfWork) -> None:
        """Make the changes of other servers wait until the transaction ends; see `GlobalWriteLock`."""
        self._order.hold(unit_of_work)

    def append(self, unit_of_work: UnitOfWork, decision_id: str) -> int:
        """Add a change within a transaction and return its number, which is greater than all earlier ones."""
        # Held until the commit, because a sequence of PostgreSQL gives out numbers before they are committed: without
        # the lock a reader could see number 8, go on after it, and never see number 7 of a slower server.
        self.hold(unit_of_work)
        added = insert(outbox).values(decision_id=decision_id).returning(outbox.c.seq)
        seq: int = unit_of_work.execute(added).scalar_one()
        return seq

    def peek(self, limit: int) -> list[DecisionChange]:
        """Return the oldest changes, at most `limit`, by rising number."""
        with self._database.background_snapshot() as unit_of_work:
            return [DecisionChange(*row) for row in self._oldest.all(unit_of_work, {"limit": limit})]

    def acknowledge(self, seqs: Sequence[int]) -> None:
        """Remove changes that the index has stored. Raises Unavailable."""

        def job(unit_of_work: UnitOfWork) -> None:
            for start in range(0, len(seqs), MAX_PARAMETERS):
                unit_of_work.execute(delete(outbox).where(outbox.c.seq.in_(seqs[start : start + MAX_PARAMETERS])))

        if seqs:
            self._writer.run(job)

    def clear(self) -> None:
        """Remove all changes; later numbers continue to rise. Raises Unavailable."""

        def job(unit_of_work: UnitOfWork) -> None:
            unit_of_work.execute(delete(outbox))

        self._writer.run(job)

    def depth(self) -> int:
        with self._database.background_snapshot() as unit_of_work:
            return unit_of_work.execute(select(func.count()).select_from(outbox)).scalar_one()
