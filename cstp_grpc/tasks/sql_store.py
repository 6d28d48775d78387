"""Tasks in an SQL database."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    Select,
    Update,
    bindparam,
    delete,
    desc,
    func,
    or_,
    select,
    tuple_,
    union_all,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite

from cstp_grpc.storage.driver_statement import DriverStatement, Row, parameters
from cstp_grpc.storage.page_token import from_microseconds, read_token, to_microseconds, write_token
from cstp_grpc.storage.paging import ITEM_BYTES, MAX_BYTES, PageRequest
from cstp_grpc.storage.reading import reading
from cstp_grpc.storage.tables import tasks
from cstp_grpc.storage.text import storable
from cstp_grpc.tasks.states import LAPSED, states_before
from cstp_grpc.tasks.store import Moment, Task, TaskFilter, TaskPage, TaskRecord
from cstp_grpc.vocabulary import TaskState

table = tasks.c

OF_TASK = (table.agent == bindparam("of_agent"), table.id == bindparam("of_id"))
TASK = select(tasks).where(*OF_TASK)
KEPT_TASK = TASK.where(table.settles_at > bindparam("expired"))
EXPIRED_TASK = delete(tasks).where(*OF_TASK, table.settles_at <= bindparam("expired"))
CHANGED = ("context_id", "state", "version", "updated_at", "settles_at", "content")
"""The columns that another version of a task changes."""


class SqlTaskStore:
    """Keeps tasks in the table `tasks`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        dialect = engine.dialect
        upsert = postgresql.insert if dialect.name == "postgresql" else sqlite.insert
        insertion = upsert(tasks).values(parameters(table.keys()))
        self._insert = DriverStatement(
            insertion.on_conflict_do_nothing(index_elements=[table.agent, table.id]), dialect
        )
        self._remove_expired = DriverStatement(EXPIRED_TASK, dialect)
        self._replace = {state: DriverStatement(replacement(state), dialect) for state in TaskState}
        self._load = DriverStatement(TASK, dialect)
        self._load_locked = DriverStatement(TASK.with_for_update(), dialect)
        self._get = DriverStatement(KEPT_TASK, dialect)

    @property
    def is_local(self) -> bool:
        """Whether the database is a file of this machine."""
        return self._engine.dialect.name == "sqlite"

    def add(self, connection: Connection, agent: str, task: Task, settles_at: datetime, moment: Moment) -> bool:
        """Add a task within a transaction, and return whether there was none of its id.

        Raises SQLAlchemyError where the database does not answer.
        """
        row = row_of(agent, task, settles_at)
        if self._insert.run(connection, row) == 1:
            return True
        # An expired task that was not removed yet makes room for one of the same id, with all that belongs to it.
        expired = {**key_of(agent, task.id), "expired": moment.expired}
        return self._remove_expired.run(connection, expired) == 1 and self._insert.run(connection, row) == 1

    def replace(self, connection: Connection, agent: str, task: Task, settles_at: datetime, moment: Moment) -> bool:
        """Put a task in the place of the version before it within a transaction, and return whether that exists and may
        change to the task's state.

        Raises SQLAlchemyError where the database does not answer.
        """
        previous = {**key_of(agent, task.id), "previous": task.version - 1, "now": moment.now}
        return self._replace[task.state].run(connection, row_of(agent, task, settles_at) | previous) == 1

    def load(self, connection: Connection, agent: str, task_id: str, *, lock: bool = False) -> TaskRecord | None:
        """Return a task as it was saved, also an expired one, within a transaction; None if none was.

        `lock` keeps the changes of others waiting until the transaction ends. Raises SQLAlchemyError where the database
        does not answer.
        """
        statement = self._load_locked if lock else self._load
        row = statement.first(connection, key_of(agent, task_id))
        return None if row is None else record_of(row)

    def get(self, agent: str, task_id: str, moment: Moment) -> Task | None:
        """Return a task as it stands; None where the agent has none of that id.

        Raises QueryFailed where the database does not answer.
        """
        with reading(self._engine) as connection:
            row = self._get.first(connection, {**key_of(agent, task_id), "expired": moment.expired})
        return None if row is None else task_of(row, moment)

    def page(self, conditions: TaskFilter, request: PageRequest, moment: Moment) -> TaskPage:
        """Return the tasks that meet all conditions, last changed first and by falling id at the same instant.

        Raises InvalidArgument where the page token is not one of this listing, QueryFailed where the database does not
        answer.
        """
        parts = parts_of(conditions, moment)
        query = listing(parts, conditions, request)
        with reading(self._engine) as connection:
            rows = connection.execute(query).all()
            total = connection.execute(count_of(parts)).scalar_one()
        items = tuple(task_of(row, moment) for row in rows)
        more = bool(rows) and rows[0].found > len(rows)
        return TaskPage(items, token_after(items[-1], conditions) if more else "", total)

    def remove_expired(self, connection: Connection, moment: Moment, limit: int) -> int:
        """Remove up to `limit` expired tasks within a transaction, and return how many.

        Raises SQLAlchemyError where the database does not answer.
        """
        # Another replica may be removing the same ones, or making room for a new one of the same id.
        expired = (
            select(table.agent, table.id)
            .where(table.settles_at <= moment.expired)
            .order_by(table.settles_at)
            .limit(limit)
            .with_for_update(skip_locked=True)
        )
        return connection.execute(delete(tasks).where(tuple_(table.agent, table.id).in_(expired))).rowcount


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a listing: what its tasks meet, and when they came to their states."""

    conditions: tuple[ColumnElement[bool], ...]
    changed_at: ColumnElement[datetime]

    def select(self, *columns: ColumnElement[Any]) -> Select[Any]:
        """Return the query of these columns of the part."""
        return select(*columns).where(*self.conditions)


def parts_of(conditions: TaskFilter, moment: Moment) -> tuple[Part, Part]:
    """Return the two parts of a listing, of which an index gives each in its own order.

    These are the tasks that have settled, whose last change that was, and those that can still change.
    """
    common = [table.agent == conditions.agent]
    if conditions.context_id is not None:
        common.append(table.context_id == storable(conditions.context_id))
    settled = [*common, table.settles_at > moment.expired, table.settles_at <= moment.now]
    open_tasks = [*common, table.settles_at > moment.now]
    if conditions.states:
        settled.append(table.state.in_(stored_states(conditions.states)))
        open_tasks.append(table.state.in_([state.value for state in conditions.states]))
    if conditions.updated_after is not None:
        settled.append(table.settles_at >= conditions.updated_after)
        open_tasks.append(table.updated_at >= conditions.updated_after)
    return Part(tuple(settled), table.settles_at), Part(tuple(open_tasks), table.updated_at)


def stored_states(states: Iterable[TaskState]) -> list[str]:
    """Return the states in which settled tasks that are in one of these may be stored, since some have lapsed."""
    wanted = set(states)
    lapsed = {before for before, after in LAPSED.items() if after in wanted}
    return sorted(wanted - LAPSED.keys() | lapsed)


def listing(parts: Iterable[Part], conditions: TaskFilter, request: PageRequest) -> Select[Any]:
    """Return the query of a page from its token on, with the number of tasks `found` from there, up to one more than
    the page takes.

    Sizes are judged before contents are read, since a page full of large ones would take far more than a message.
    """
    found = union_all(*(select(candidates(part, conditions, request).subquery()) for part in parts)).subquery()
    order = (desc(found.c.changed_at), desc(found.c.id))
    first = select(found).order_by(*order).limit(request.limit + 1).subquery()
    order = (desc(first.c.changed_at), desc(first.c.id))
    measured = select(
        first,
        func.row_number().over(order_by=order).label("place"),
        func.sum(first.c.size + ITEM_BYTES).over(order_by=order).label("bytes"),
        func.count().over().label("found"),
    ).subquery()
    fits = or_(measured.c.place == 1, measured.c.bytes <= MAX_BYTES)
    return (
        select(tasks, measured.c.found)
        .join(measured, table.id == measured.c.id)
        .where(table.agent == conditions.agent, measured.c.place <= request.limit, fits)
        .order_by(measured.c.place)
    )


def candidates(part: Part, conditions: TaskFilter, request: PageRequest) -> Select[Any]:
    """Return the query of what a part may give to a page, without contents."""
    size = func.length(table.content).label("size")
    query = part.select(table.id, part.changed_at.label("changed_at"), size)
    if request.token:
        microseconds, last_id = read_token(request.token, conditions, (int, str))
        last = tuple_(from_microseconds(int(microseconds)), last_id)
        query = query.where(tuple_(part.changed_at, table.id) < last)
    return query.order_by(desc(part.changed_at), desc(table.id)).limit(request.limit + 1)


def count_of(parts: Iterable[Part]) -> Select[Any]:
    """Return the query of how many tasks a listing has."""
    first, second = (part.select(func.count()).scalar_subquery() for part in parts)
    return select(first + second)


def row_of(agent: str, task: Task, settles_at: datetime) -> dict[str, object]:
    """Return a task as a row of `tasks`."""
    return {
        "agent": agent,
        "id": task.id,
        "context_id": storable(task.context_id),
        "state": task.state.value,
        "version": task.version,
        "updated_at": task.updated_at,
        "settles_at": settles_at,
        "content": task.content,
    }


def key_of(agent: str, task_id: str) -> dict[str, object]:
    """Return the values by which a statement finds one task."""
    return {"of_agent": agent, "of_id": storable(task_id)}


def replacement(state: TaskState) -> Update:
    """Return the statement that puts a task in a state in the place of the version before it."""
    may_change = or_(*(table.state == before.value for before in sorted(states_before(state))))
    return (
        update(tasks)
        .where(*OF_TASK, table.version == bindparam("previous"), may_change, table.settles_at > bindparam("now"))
        .values(parameters(CHANGED))
    )


def task_of(row: Row, moment: Moment) -> Task:
    """Return a row of `tasks` as the task stands at a moment."""
    record = record_of(row)
    task, settles_at = record.task, record.settles_at
    if settles_at > moment.now:
        return task
    return replace(task, state=LAPSED.get(task.state, task.state), updated_at=settles_at)


def record_of(row: Row) -> TaskRecord:
    """Return a row of `tasks`, whatever stands behind its columns, as the task was saved."""
    _agent, task_id, context_id, state, version, updated_at, settles_at, content = row[: len(table)]
    return TaskRecord(Task(task_id, context_id, TaskState(state), content, version, updated_at), settles_at)


def token_after(last: Task, conditions: TaskFilter) -> str:
    """Return the token of the page after a task."""
    return write_token(conditions, (to_microseconds(last.updated_at), last.id))
