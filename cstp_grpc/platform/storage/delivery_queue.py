"""The queue of items on disk that wait for their delivery."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Any, Generic, Protocol, TypeVar

import sqlalchemy as sa
from sqlalchemy import ColumnElement, ColumnExpressionArgument, Row, Table

from cstp_grpc.common.lazy_dataclass import dataclass, replace
from cstp_grpc.common.measures import Measure, read_labelled
from cstp_grpc.platform.storage.database import Database
from cstp_grpc.platform.storage.unit_of_work import CompiledStatement, GlobalWriteLock, UnitOfWork


class DeliveryFailed(Exception):
    """A delivery attempt failed and may be retried; the message says why.

    `progress` are the fields of the item that the attempt changed.
    """

    def __init__(self, message: str, **progress: object) -> None:
        super().__init__(message)
        self.progress = progress


class DeliveryRejected(Exception):
    """An item is not delivered and not retried; the message says why."""


class QueuedItem(Protocol):
    """A dataclass that waits for its delivery; its text is its name in the log."""

    @property
    def key(self) -> Hashable:
        """The identity of the item."""

    @property
    def caused_at(self) -> datetime:
        """The instant of the event that the item reports."""

    @property
    def attempts(self) -> int:
        """How many attempts have failed."""

    @property
    def next_attempt_at(self) -> datetime | None:
        """When the next attempt is due."""


ItemT = TypeVar("ItemT", bound=QueuedItem)


@dataclass(frozen=True, slots=True)
class Backlog:
    """The items that wait in an outbox: their number, and since when the oldest waits; None without any."""

    count: int
    oldest: datetime | None


def build_outbox_measures(
    kind: str,
    queue: SqlDeliveryQueue[ItemT],
    reading: Callable[[], AbstractContextManager[UnitOfWork]],
    clock: Callable[[], datetime],
) -> list[Measure]:
    """Build the figures of a queue, which `kind` names among others."""

    def read() -> Backlog:
        with reading() as unit_of_work:
            return queue.read_backlog(unit_of_work, clock())

    def read_age() -> float:
        oldest = read().oldest
        return 0.0 if oldest is None else max((clock() - oldest).total_seconds(), 0.0)

    return [
        Measure(
            "outbox_items",
            "Items waiting for delivery, including those whose last attempt failed.",
            read_labelled(kind, lambda: read().count),
            ("kind",),
            of_database=True,
        ),
        Measure(
            "outbox_oldest_seconds",
            "How long the oldest item has waited; 0 if no item waits.",
            read_labelled(kind, read_age),
            ("kind",),
            of_database=True,
        ),
    ]


class SqlDeliveryQueue(Generic[ItemT]):
    """The items of a table that wait for their delivery; it has the columns `attempts` and `next_attempt_at`.

    `key` are the columns that identify an item, `from_row` converts a row. An item can be due if it meets `condition`.
    `is_waiting` is the condition of items that wait at the instant `at`, and `since` the column with their cause.
    """

    def __init__(
        self,
        database: Database,
        table: Table,
        key: Sequence[str],
        from_row: Callable[[Row[Any]], ItemT],
        *,
        since: str = "caused_at",
        condition: ColumnExpressionArgument[bool] | None = None,
        is_waiting: ColumnExpressionArgument[bool] | None = None,
    ) -> None:
        self._table = table
        self._key = key
        self._from_row = from_row
        self._condition = sa.true() if condition is None else condition
        self._order = GlobalWriteLock(database.dialect)
        due, cause = table.c.next_attempt_at, table.c[since]
        next_due = sa.select(due).order_by(due).limit(1)
        waiting = cause <= sa.bindparam("at") if is_waiting is None else is_waiting
        backlog = sa.select(sa.func.count(), sa.func.min(cause)).where(waiting)
        self._next_due = CompiledStatement(
            next_due if condition is None else next_due.where(condition), database.dialect
        )
        self._backlog = CompiledStatement(backlog, database.dialect)

    def hold(self, unit_of_work: UnitOfWork) -> None:
        """Make the changes of other servers wait until the transaction ends; see `GlobalWriteLock`."""
        self._order.hold(unit_of_work)

    def next_due(self, unit_of_work: UnitOfWork) -> datetime | None:
        """Return when the next item is due, or None if no item waits."""
        row = self._next_due.first(unit_of_work, {})
        return None if row is None else row[0]

    def read_backlog(self, unit_of_work: UnitOfWork, now: datetime) -> Backlog:
        """Return how many items wait at an instant, and since when the oldest does."""
        ((count, oldest),) = self._backlog.all(unit_of_work, {"at": now})
        return Backlog(count, oldest)

    def take_due(self, unit_of_work: UnitOfWork, now: datetime, until: datetime, limit: int) -> list[ItemT]:
        """Return due items, the longest due first, leased until `until` so that no other server takes them."""
        # Held before the rows are read, so that no other server takes the same ones. The lease is the new time of the
        # next attempt: if this process is killed while it delivers, any server takes them again from then on.
        self.hold(unit_of_work)
        columns = self._table.c
        query = (
            sa.select(self._table)
            .where(columns.next_attempt_at <= now, self._condition)
            .order_by(columns.next_attempt_at, *(columns[name] for name in self._key))
            .limit(limit)
        )
        taken = [change_item(self._from_row(row), next_attempt_at=until) for row in unit_of_work.execute(query)]
        for item in taken:
            self.postpone(unit_of_work, item)
        return taken

    def postpone(self, unit_of_work: UnitOfWork, item: ItemT) -> None:
        """Store when an item is due next and how many attempts failed, unless it was removed."""
        self.hold(unit_of_work)
        values = {"attempts": item.attempts, "next_attempt_at": item.next_attempt_at}
        unit_of_work.execute(sa.update(self._table).where(*self._conditions(item)).values(values))

    def remove(self, unit_of_work: UnitOfWork, item: ItemT) -> bool:
        """Remove an item, and return whether it existed."""
        self.hold(unit_of_work)
        return unit_of_work.execute(sa.delete(self._table).where(*self._conditions(item))).rowcount == 1

    def _conditions(self, item: ItemT) -> list[ColumnElement[bool]]:
        return [self._table.c[name] == getattr(item, name) for name in self._key]


def change_item(item: ItemT, **changes: object) -> ItemT:
    return replace(item, **changes)  # type: ignore[type-var]  # each kind of item is a dataclass
