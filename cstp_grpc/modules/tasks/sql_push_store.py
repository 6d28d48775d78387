"""The store of push configurations and queued notifications in SQL."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Row, and_, bindparam, delete, exists, func, select, update

from cstp_grpc.common.unicode_text import replace_unstorable
from cstp_grpc.contract.enums import TaskState
from cstp_grpc.modules.tasks.model import PushConfig, Task, TaskNotification
from cstp_grpc.modules.tasks.sql_store import push_configs, task_notifications
from cstp_grpc.platform.storage.database import Database
from cstp_grpc.platform.storage.delivery_queue import SqlDeliveryQueue
from cstp_grpc.platform.storage.row_mapper import RowMapper
from cstp_grpc.platform.storage.unit_of_work import CompiledStatement, UnitOfWork, bind_parameters

config_columns = push_configs.c
notification_columns = task_notifications.c
CONFIG_KEY = (config_columns.agent, config_columns.task_id, config_columns.id)
KEY = (
    notification_columns.agent,
    notification_columns.task_id,
    notification_columns.config_id,
    notification_columns.version,
)
CONFIG = RowMapper(PushConfig, push_configs)
config_from_row = CONFIG.reader(tuple(config_columns))
NOTIFICATION = RowMapper(TaskNotification, task_notifications)
KEY_NAMES = tuple(column.name for column in KEY)
CONFIGS = (
    select(push_configs)
    .where(
        config_columns.agent == bindparam("of_agent"),
        config_columns.task_id == bindparam("of_task"),
        config_columns.id > bindparam("after"),
    )
    .order_by(config_columns.id)
)
COUNT_DUE = select(func.count()).where(
    notification_columns.agent == bindparam("of_agent"), notification_columns.caused_at <= bindparam("at")
)
SNAPSHOT = (
    update(task_notifications)
    .where(
        notification_columns.agent == bindparam("of_agent"),
        notification_columns.task_id == bindparam("of_task"),
        notification_columns.version == bindparam("of_version"),
    )
    .values(bind_parameters(("context_id", "state", "changed_at", "content")))
)


class SqlPushStore(SqlDeliveryQueue[TaskNotification]):
    """Stores configurations in the table `push_configs`, notifications in `task_notifications`.

    A notification is not due while one about an earlier version waits for the same configuration.
    """

    def __init__(self, database: Database) -> None:
        super().__init__(
            database,
            task_notifications,
            # The id and the key: a newer notification of the same key must stay.
            ("id", *KEY_NAMES),
            notification_from_row,
            condition=first_in_line_condition(),
        )
        self._database = database
        dialect = database.dialect
        notification = database.insertion(task_notifications).values(bind_parameters(notification_columns.keys()))
        # A replacement gets a new id, too: an attempt in progress then neither removes nor postpones it.
        replaced = {name: notification.excluded[name] for name in notification_columns.keys() if name not in KEY_NAMES}  # noqa: SIM118
        self._put = CompiledStatement(notification.on_conflict_do_update(index_elements=KEY, set_=replaced), dialect)
        self._configs = CompiledStatement(CONFIGS, dialect)
        self._count_due = CompiledStatement(COUNT_DUE, dialect)
        self._keep_snapshot = CompiledStatement(SNAPSHOT, dialect)

    def read_snapshot(self) -> AbstractContextManager[UnitOfWork]:
        """Open a unit of work for reading. Raises QueryFailed if the database does not respond."""
        return self._database.read_snapshot()

    def put_config(self, unit_of_work: UnitOfWork, agent: str, task_id: str, config: PushConfig, at: datetime) -> None:
        """Store a configuration of a task, replacing one of the same id."""
        row = {**CONFIG.to_row(config), "agent": agent, "task_id": task_id, "set_at": at}
        statement = self._database.insertion(push_configs).values(row)
        unit_of_work.execute(statement.on_conflict_do_update(index_elements=CONFIG_KEY, set_=row))

    def remove_config(self, unit_of_work: UnitOfWork, agent: str, task_id: str, config_id: str) -> None:
        # The foreign key removes its notifications.
        unit_of_work.execute(delete(push_configs).where(config_condition(agent, task_id, config_id)))

    def configs(self, unit_of_work: UnitOfWork, agent: str, task_id: str, after: str = "") -> Sequence[PushConfig]:
        """Return the configurations of a task by rising id, starting after the id `after`."""
        values = {"of_agent": agent, "of_task": replace_unstorable(task_id), "after": replace_unstorable(after)}
        return [config_from_row(row) for row in self._configs.all(unit_of_work, values)]

    def config(self, unit_of_work: UnitOfWork, agent: str, task_id: str, config_id: str | None) -> PushConfig | None:
        """Return a configuration of a task (without an id, the one that was set last), or None."""
        query = select(push_configs).where(
            config_columns.agent == agent, config_columns.task_id == replace_unstorable(task_id)
        )
        if config_id is not None:
            query = query.where(config_columns.id == replace_unstorable(config_id))
        row = unit_of_work.execute(query.order_by(config_columns.set_at.desc(), config_columns.id).limit(1)).first()
        return None if row is None else config_from_row(row)

    def put(self, unit_of_work: UnitOfWork, notifications: Sequence[TaskNotification]) -> None:
        """Store notifications, each replacing one about the same version and configuration."""
        for notification in notifications:
            self._put.run(unit_of_work, notification_to_row(notification))

    def count_due(self, unit_of_work: UnitOfWork, agent: str, at: datetime) -> int:
        """Return how many queued notifications of an agent were caused at or before an instant."""
        row = self._count_due.first(unit_of_work, {"of_agent": agent, "at": at})
        assert row is not None, "a count has a row"
        count: int = row[0]
        return count

    def keep_snapshot(self, unit_of_work: UnitOfWork, agent: str, task: Task) -> None:
        """Store a version of a task with the notifications about it, because it is about to be replaced."""
        self._keep_snapshot.run(
            unit_of_work, {"of_agent": agent, "of_task": task.id, "of_version": task.version, **snapshot_columns(task)}
        )


def config_condition(agent: str, task_id: str, config_id: str) -> ColumnElement[bool]:
    return and_(
        config_columns.agent == agent,
        config_columns.task_id == replace_unstorable(task_id),
        config_columns.id == replace_unstorable(config_id),
    )


def first_in_line_condition() -> ColumnElement[bool]:
    """Return the condition that a notification is the first of its configuration's queue."""
    earlier = task_notifications.alias("earlier")
    # All parts of the key but the version: agent, task and configuration.
    same = (earlier.c[column.name] == column for column in KEY[:-1])
    return ~exists(select(1).where(*same, earlier.c.version < notification_columns.version))


def notification_to_row(notification: TaskNotification) -> dict[str, Any]:
    snapshot = notification.snapshot
    return {**NOTIFICATION.to_row(notification), **snapshot_columns(snapshot)}


def snapshot_columns(task: Task | None) -> dict[str, Any]:
    """Return the columns of the version of a task that a notification is about; None for the stored version."""
    return {
        "context_id": task and task.context_id,
        "state": task and task.state.value,
        "changed_at": task and task.updated_at,
        "content": task and task.content,
    }


def notification_from_row(row: Row[Any]) -> TaskNotification:
    notification = NOTIFICATION.from_row(row._mapping)
    if row.content is None:
        return notification
    snapshot = Task(row.task_id, row.context_id, TaskState(row.state), row.content, row.version, row.changed_at)
    return replace(notification, snapshot=snapshot)
