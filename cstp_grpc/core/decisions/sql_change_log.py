"""The numbers of changes in the journal, in SQL."""

from __future__ import annotations

from sqlalchemy import BigInteger, bindparam, delete, insert

from cstp_grpc.core.decisions.sql_tables import outbox
from cstp_grpc.platform.storage.database import Database
from cstp_grpc.platform.storage.unit_of_work import GlobalWriteLock, UnitOfWork

EARLIER = delete(outbox).where(outbox.c.seq < bindparam("seq", type_=BigInteger))


class SqlChangeLog:
    """Gives each change a number in its transaction; the table keeps the last one only."""

    def __init__(self, database: Database) -> None:
        self._order = GlobalWriteLock(database.dialect)

    def hold(self, unit_of_work: UnitOfWork) -> None:
        """Make the changes of other servers wait until the transaction ends; see `GlobalWriteLock`."""
        self._order.hold(unit_of_work)

    def append(self, unit_of_work: UnitOfWork, decision_id: str) -> int:
        """Return the number of a change of a decision, which is greater than all earlier ones."""
        # Held until the commit, because a sequence of PostgreSQL gives out numbers before they are committed: without
        # the lock a reader could see number 8, go on after it, and never see number 7 of a slower server.
        self.hold(unit_of_work)
        added = insert(outbox).values(decision_id=decision_id).returning(outbox.c.seq)
        seq: int = unit_of_work.execute(added).scalar_one()
        unit_of_work.execute(EARLIER, {"seq": seq})
        return seq
