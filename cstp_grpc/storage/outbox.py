"""Changes of decisions that the index has yet to take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, Engine, Integer, bindparam, delete, func, insert, select

from cstp_grpc.storage.driver_statement import DriverStatement
from cstp_grpc.storage.order import WriteOrder
from cstp_grpc.storage.tables import outbox
from cstp_grpc.storage.writer import Writer

MAX_PARAMETERS = 1000
"""How many numbers one statement names."""

OLDEST = select(outbox.c.seq, outbox.c.decision_id).order_by(outbox.c.seq).limit(bindparam("limit", type_=Integer))


@dataclass(frozen=True, slots=True)
class OutboxRow:
    """A change of a decision; `seq` is its place among all changes."""

    seq: int
    decision_id: str


class Outbox:
    """A queue on disk, filled in the transaction of the change itself, so that none is ever forgotten.

    Reads raise SQLAlchemyError where the database does not answer.
    """

    def __init__(self, engine: Engine, writer: Writer) -> None:
        self._engine = engine
        self._writer = writer
        self._order = WriteOrder(engine)
        self._oldest = DriverStatement(OLDEST, engine.dialect)

    def hold(self, connection: Connection) -> None:
        """Keep the changes of other servers waiting until the transaction ends; see `WriteOrder`."""
        self._order.hold(connection)

    def append(self, connection: Connection, decision_id: str) -> int:
        """Add a change within a transaction and return its number, which is greater than every one before it."""
        # Whoever sees a number must be sure that no smaller one is still to be committed by another replica.
        self.hold(connection)
        added = insert(outbox).values(decision_id=decision_id).returning(outbox.c.seq)
        seq: int = connection.execute(added).scalar_one()
        return seq

    def peek(self, limit: int) -> list[OutboxRow]:
        """Return the oldest changes, at most `limit`, by rising number."""
        with self._engine.connect() as connection:
            return [OutboxRow(*row) for row in self._oldest.all(connection, {"limit": limit})]

    def acknowledge(self, seqs: Sequence[int]) -> None:
        """Remove changes that the index has taken. Raises Unavailable."""

        def job(connection: Connection) -> None:
            for start in range(0, len(seqs), MAX_PARAMETERS):
                connection.execute(delete(outbox).where(outbox.c.seq.in_(seqs[start : start + MAX_PARAMETERS])))

        if seqs:
            self._writer.run(job)

    def clear(self) -> None:
        """Remove all changes; the numbers of later ones rise on all the same. Raises Unavailable."""

        def job(connection: Connection) -> None:
            connection.execute(delete(outbox))

        self._writer.run(job)

    def depth(self) -> int:
        """Return how many changes wait."""
        with self._engine.connect() as connection:
            return connection.execute(select(func.count()).select_from(outbox)).scalar_one()
