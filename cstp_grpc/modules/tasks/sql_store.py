"""The store of tasks in SQL, and the tables of tasks and push notifications as the newest migration leaves them."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from cstp_grpc.common.lazy_dataclass import dataclass, replace
from cstp_grpc.common.unicode_text import replace_unstorable
from cstp_grpc.contract.enums import TaskState
from cstp_grpc.modules.tasks.model import (
    STATE_AFTER_TIMEOUT,
    ObservationTime,
    Task,
    TaskFilter,
    TaskPage,
    TaskRecord,
    states_that_may_become,
)
from cstp_grpc.platform.storage import pagination
from cstp_grpc.platform.storage.database import Database
from cstp_grpc.platform.storage.row_mapper import RowMapper
from cstp_grpc.platform.storage.unit_of_work import (
    IDENTIFIER,
    CompiledStatement,
    Row,
    UnitOfWork,
    UtcDateTime,
    bind_parameters,
    metadata,
)

tasks = sa.Table(
    "tasks",
    metadata,
    sa.Column("agent", IDENTIFIER, primary_key=True),
    sa.Column("id", IDENTIFIER, primary_key=True),
    sa.Column("context_id", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("version", sa.Integer, nullable=False),
    sa.Column("updated_at", UtcDateTime, nullable=False),
    sa.Column("settles_at", UtcDateTime, nullable=False),
    # Last, because SQLite reads a row from its start: a column behind large content costs reading the content too.
    sa.Column("content", sa.LargeBinary, nullable=False),
    sa.Index(None, "agent", "settles_at", "id"),
    sa.Index(None, "agent", "context_id", "settles_at", "id"),
    sa.Index(None, "settles_at"),
)
"""A2A tasks, one row for each agent and id.

`updated_at` is when the task was saved. `settles_at` is when it cannot change any more: the same instant for one that
ended, the end of its time for any other. So one index orders settled tasks and finds those that can still change, and
nothing is written when the time of a task runs out.
"""

push_configs = sa.Table(
    "push_configs",
    metadata,
    sa.Column("agent", IDENTIFIER, primary_key=True),
    sa.Column("task_id", IDENTIFIER, primary_key=True),
    sa.Column("id", IDENTIFIER, primary_key=True),
    sa.Column("set_at", UtcDateTime, nullable=False),
    sa.Column("format", sa.Text, nullable=False),
    sa.Column("url", sa.Text, nullable=False),
    sa.Column("token", sa.Text, nullable=False),
    sa.Column("scheme", sa.Text, nullable=False),
    sa.Column("credentials", sa.Text, nullable=False),
    sa.ForeignKeyConstraint(["agent", "task_id"], ["tasks.agent", "tasks.id"], ondelete="CASCADE"),
    sqlite_with_rowid=False,
)
"""The push configurations of tasks; `url`, `token` and `credentials` may be secrets."""

task_notifications = sa.Table(
    "task_notifications",
    metadata,
    sa.Column("agent", IDENTIFIER, primary_key=True),
    sa.Column("task_id", IDENTIFIER, primary_key=True),
    sa.Column("config_id", IDENTIFIER, primary_key=True),
    sa.Column("version", sa.Integer, primary_key=True),
    sa.Column("id", IDENTIFIER, nullable=False),
    sa.Column("caused_at", UtcDateTime, nullable=False),
    sa.Column("attempts", sa.Integer, nullable=False),
    sa.Column("next_attempt_at", UtcDateTime, nullable=False),
    sa.Column("context_id", sa.Text),
    sa.Column("state", sa.Text),
    sa.Column("changed_at", UtcDateTime),
    sa.Column("content", sa.LargeBinary),
    sa.ForeignKeyConstraint(
        ["agent", "task_id", "config_id"],
        ["push_configs.agent", "push_configs.task_id", "push_configs.id"],
        ondelete="CASCADE",
    ),
    sa.Index(None, "next_attempt_at"),
)
"""Queued push notifications, each about a version of a task, until they are delivered or abandoned.

The last four columns are a snapshot of a version that was replaced before its notification was delivered; NULL for the
stored version. While a task is at work, a notification about the version after it is queued for the end of its time.
"""


task_columns = tasks.c

OF_TASK = (task_columns.agent == sa.bindparam("of_agent"), task_columns.id == sa.bindparam("of_id"))
TASK = sa.select(tasks).where(*OF_TASK)
KEPT_TASK = TASK.where(task_columns.settles_at > sa.bindparam("expired"))
EXPIRED_TASK = sa.delete(tasks).where(*OF_TASK, task_columns.settles_at <= sa.bindparam("expired"))
CHANGED_COLUMNS = ("context_id", "state", "version", "updated_at", "settles_at", "content")
"""The columns that another version of a task changes."""

TASK_ROW = RowMapper(Task, tasks)
record_from_row = RowMapper(TaskRecord, tasks, nested={"task": TASK_ROW}).reader(tuple(tasks.c))
"""Converts a row of `tasks`, with any further columns, to the task as it was saved."""


class SqlTaskStore:
    """Stores tasks in the table `tasks`."""

    def __init__(self, database: Database) -> None:
        self._database = database
        dialect = database.dialect
        insertion = database.insertion(tasks).values(bind_parameters(task_columns.keys()))
        self._insert = CompiledStatement(
            insertion.on_conflict_do_nothing(index_elements=[task_columns.agent, task_columns.id]), dialect
        )
        self._remove_expired = CompiledStatement(EXPIRED_TASK, dialect)
        self._replace = {state: CompiledStatement(statement, dialect) for state, statement in REPLACEMENTS.items()}
        self._load = CompiledStatement(TASK, dialect)
        self._load_locked = CompiledStatement(TASK.with_for_update(), dialect)
        self._get = CompiledStatement(KEPT_TASK, dialect)

    @property
    def is_local(self) -> bool:
        """Whether the database is a file of this machine."""
        return self._database.is_sqlite

    def add(
        self, unit_of_work: UnitOfWork, agent: str, task: Task, settles_at: datetime, observed: ObservationTime
    ) -> bool:
        """Insert a task within a transaction, and return False if its id exists."""
        row = task_to_row(agent, task, settles_at)
        if self._insert.run(unit_of_work, row) == 1:
            return True
        # An expired task that was not removed yet no longer exists for callers: its id is free. The foreign keys remove
        # its push configurations and notifications with it.
        expired = {**task_key_values(agent, task.id), "expired": observed.expired}
        return self._remove_expired.run(unit_of_work, expired) == 1 and self._insert.run(unit_of_work, row) == 1

    def replace(
        self, unit_of_work: UnitOfWork, agent: str, task: Task, settles_at: datetime, observed: ObservationTime
    ) -> bool:
        """Replace the previous version of a task within a transaction.

        Returns False if that version does not exist or may not change to the task's state.
        """
        previous = {**task_key_values(agent, task.id), "previous": task.version - 1, "now": observed.now}
        return self._replace[task.state].run(unit_of_work, task_to_row(agent, task, settles_at) | previous) == 1

    def load(self, unit_of_work: UnitOfWork, agent: str, task_id: str, *, lock: bool = False) -> TaskRecord | None:
        """Return a task as it was saved, even if expired, within a transaction; None if it does not exist.

        `lock` makes other changes wait until the transaction ends.
        """
        statement = self._load_locked if lock else self._load
        row = statement.first(unit_of_work, task_key_values(agent, task_id))
        return None if row is None else record_from_row(row)

    def get(self, agent: str, task_id: str, observed: ObservationTime) -> Task | None:
        """Return a task in its state at an instant; None if the agent has no task with this id.

        Raises QueryFailed if the database does not respond.
        """
        with self._database.open_driver_connection() as driver:
            rows = self._get.fetch(driver, {**task_key_values(agent, task_id), "expired": observed.expired})
        return task_from_row(rows[0], observed) if rows else None

    def page(self, conditions: TaskFilter, request: pagination.PageRequest, observed: ObservationTime) -> TaskPage:
        """Return the tasks that meet all conditions, last changed first, then by falling id.

        Raises InvalidArgument if the page token is not one of this listing, QueryFailed if the database does not
        respond.
        """
        parts = listing_branches(conditions, observed)
        query = page_query(parts, conditions, request)
        with self._database.read_snapshot() as unit_of_work:
            # One snapshot for the page and the count, so that they agree.
            rows = unit_of_work.execute(query).all()
            total = unit_of_work.execute(count_query(parts)).scalar_one()
        items = tuple(task_from_row(row, observed) for row in rows)
        more = bool(rows) and rows[0].found > len(rows)
        return TaskPage(items, next_page_token(items[-1], conditions) if more else "", total)

    def remove_expired(self, unit_of_work: UnitOfWork, observed: ObservationTime, limit: int) -> int:
        """Remove up to `limit` expired tasks within a transaction, and return how many."""
        # Locked rows are skipped: another server is removing them, or replacing one by a new task of the same id.
        expired = (
            sa.select(task_columns.agent, task_columns.id)
            .where(task_columns.settles_at <= observed.expired)
            .order_by(task_columns.settles_at)
            .limit(limit)
            .with_for_update(skip_locked=True)
        )
        return unit_of_work.execute(
            sa.delete(tasks).where(sa.tuple_(task_columns.agent, task_columns.id).in_(expired))
        ).rowcount


@dataclass(frozen=True, slots=True)
class ListingBranch:
    """One branch of a listing: its conditions, and when its tasks entered their states."""

    conditions: tuple[sa.ColumnElement[bool], ...]
    changed_at: sa.ColumnElement[datetime]

    def select(self, *columns: sa.ColumnElement[Any]) -> sa.Select[Any]:
        return sa.select(*columns).where(*self.conditions)


def listing_branches(conditions: TaskFilter, observed: ObservationTime) -> tuple[ListingBranch, ListingBranch]:
    """Return the two branches of a listing, each of which an index returns in order.

    These are the tasks that have settled, ordered by that instant, and those that can still change.
    """
    common = [task_columns.agent == conditions.agent]
    if conditions.context_id is not None:
        common.append(task_columns.context_id == replace_unstorable(conditions.context_id))
    settled = [*common, task_columns.settles_at > observed.expired, task_columns.settles_at <= observed.now]
    open_tasks = [*common, task_columns.settles_at > observed.now]
    if conditions.states:
        settled.append(task_columns.state.in_(stored_states(conditions.states)))
        open_tasks.append(task_columns.state.in_([state.value for state in conditions.states]))
    if conditions.updated_after is not None:
        settled.append(task_columns.settles_at >= conditions.updated_after)
        open_tasks.append(task_columns.updated_at >= conditions.updated_after)
    return ListingBranch(tuple(settled), task_columns.settles_at), ListingBranch(
        tuple(open_tasks), task_columns.updated_at
    )


def stored_states(states: Iterable[TaskState]) -> list[str]:
    """Return the states in which settled tasks of `states` may be stored, since some have lapsed."""
    requested = set(states)
    lapsed = {before for before, after in STATE_AFTER_TIMEOUT.items() if after in requested}
    # A settled task stored in a state that could still change is shown in the one after its timeout, so the former
    # never matches by itself.
    return sorted(requested - STATE_AFTER_TIMEOUT.keys() | lapsed)


def page_query(
    parts: Iterable[ListingBranch], conditions: TaskFilter, request: pagination.PageRequest
) -> sa.Select[Any]:
    """Return the query of a page; its column `found` counts the tasks from the token on, up to one more.

    Sizes are computed before contents are read, since a page full of large tasks would exceed a message by far.
    """
    found = sa.union_all(*(sa.select(branch_query(part, conditions, request).subquery()) for part in parts)).subquery()
    order = (sa.desc(found.c.changed_at), sa.desc(found.c.id))
    # One row more than the page holds shows that another page follows.
    first = sa.select(found).order_by(*order).limit(request.limit + 1).subquery()
    order = (sa.desc(first.c.changed_at), sa.desc(first.c.id))
    measured = sa.select(
        first,
        sa.func.row_number().over(order_by=order).label("place"),
        sa.func.sum(first.c.size + pagination.ITEM_BYTES).over(order_by=order).label("bytes"),
        sa.func.count().over().label("found"),
    ).subquery()
    # The first task is always included, however large: a page without items would end the listing.
    fits = sa.or_(measured.c.place == 1, measured.c.bytes <= pagination.MAX_BYTES)
    return (
        sa.select(tasks, measured.c.found)
        .join(measured, task_columns.id == measured.c.id)
        .where(task_columns.agent == conditions.agent, measured.c.place <= request.limit, fits)
        .order_by(measured.c.place)
    )


def branch_query(part: ListingBranch, conditions: TaskFilter, request: pagination.PageRequest) -> sa.Select[Any]:
    """Return the query for the rows that a branch can add to a page, without contents."""
    size = sa.func.length(task_columns.content).label("size")
    query = part.select(task_columns.id, part.changed_at.label("changed_at"), size)
    if request.token:
        microseconds, last_id = pagination.decode_page_token(request.token, conditions, (int, str))
        last = sa.tuple_(pagination.from_microseconds(int(microseconds)), last_id)
        # A row value, which both databases compare along the index; in falling order, what follows is smaller.
        query = query.where(sa.tuple_(part.changed_at, task_columns.id) < last)
    return query.order_by(sa.desc(part.changed_at), sa.desc(task_columns.id)).limit(request.limit + 1)


def count_query(parts: Iterable[ListingBranch]) -> sa.Select[Any]:
    first, second = (part.select(sa.func.count()).scalar_subquery() for part in parts)
    return sa.select(first + second)


def task_to_row(agent: str, task: Task, settles_at: datetime) -> dict[str, object]:
    return {"agent": agent, "settles_at": settles_at, **TASK_ROW.to_row(task)}


def task_key_values(agent: str, task_id: str) -> dict[str, object]:
    return {"of_agent": agent, "of_id": replace_unstorable(task_id)}


def replace_statement(state: TaskState) -> sa.Update:
    may_change = sa.or_(*(task_columns.state == before.value for before in sorted(states_that_may_become(state))))
    return (
        sa.update(tasks)
        .where(
            *OF_TASK,
            task_columns.version == sa.bindparam("previous"),
            may_change,
            task_columns.settles_at > sa.bindparam("now"),
        )
        .values(bind_parameters(CHANGED_COLUMNS))
    )


REPLACEMENTS = {state: replace_statement(state) for state in TaskState}
"""A statement for each state, because the states before it are part of the condition: a change that is not allowed
matches no row."""


def task_from_row(row: Row, observed: ObservationTime) -> Task:
    """Convert a row of `tasks` to the task in its state at an instant."""
    record = record_from_row(row)
    task, settles_at = record.task, record.settles_at
    if settles_at > observed.now:
        return task
    return replace(task, state=STATE_AFTER_TIMEOUT.get(task.state, task.state), updated_at=settles_at)


def next_page_token(last: Task, conditions: TaskFilter) -> str:
    return pagination.encode_page_token(conditions, (pagination.to_microseconds(last.updated_at), last.id))
