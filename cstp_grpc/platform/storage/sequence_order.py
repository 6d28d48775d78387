"""Numbers that PostgreSQL assigns before they are committed, and the bound below which all are known."""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import BigInteger, ColumnElement, Integer, cast, column, func, select, table

from cstp_grpc.platform.storage.unit_of_work import UnitOfWork

KEYS: Final = 2**31
"""How many different keys locks have: those that are not negative among the 32-bit integers of a pair."""

LOCKS: Final = table("pg_locks", *map(column, ("locktype", "database", "classid", "objid", "objsubid")))
DATABASES: Final = table("pg_database", *map(column, ("oid", "datname")))
PAIR: Final = 2
"""The `objsubid` of an advisory lock whose key is a pair of integers."""


class SequenceOrder:
    """Finds the number of a sequence up to which no running transaction can add one.

    A transaction holds a shared advisory lock before it takes a number, and until it ends; nobody waits for it. The key
    of the lock is smaller than the number. So the least key that is held is below every number that is not committed
    yet, however long its transaction takes.
    """

    def __init__(self, sequence: str, lock_space: int) -> None:
        """Take the name of a sequence, and the first key of its locks, which no other locks have."""
        given_out = table(sequence, column("last_value", BigInteger))
        # A new sequence has the last value 1 before it gives out that number.
        key = cast((given_out.c.last_value - 1) % KEYS, Integer)
        self._key = select(key).scalar_subquery()
        self._lock_space = lock_space
        this_database = select(DATABASES.c.oid).where(DATABASES.c.datname == func.current_database()).scalar_subquery()
        self._held = select(LOCKS.c.objid).where(
            LOCKS.c.locktype == "advisory",
            LOCKS.c.database == this_database,
            LOCKS.c.classid == lock_space,
            LOCKS.c.objsubid == PAIR,
        )

    def hold(self) -> ColumnElement[Any]:
        """Return the condition of an insertion that takes the lock; it is true.

        PostgreSQL evaluates conditions of a row before its default values, which take the number.
        """
        return func.pg_try_advisory_xact_lock_shared(self._lock_space, self._key)

    def settled_number(self, unit_of_work: UnitOfWork, newest: int) -> int:
        """Return the number up to which all are committed, or never will be.

        `newest` is the greatest number that an earlier statement of the unit of work has seen.
        """
        # After that statement: a transaction without a lock has committed, and is visible now, or takes a number
        # that is greater than `newest`.
        keys = unit_of_work.execute(self._held).scalars()
        return min([newest, *(nearest_number(int(key), newest) for key in keys)])


def nearest_number(key: int, near: int) -> int:
    return near + (key - near + KEYS // 2) % KEYS - KEYS // 2
