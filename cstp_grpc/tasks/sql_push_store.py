"""Configurations of push notifications and those that wait, in an SQL database."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, replace
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, Engine, Row, and_, bindparam, delete, exists, func, select, update
from sqlalchemy.dialects import postgresql, sqlite

from cstp_grpc.storage.driver_statement import DriverStatement, parameters
from cstp_grpc.storage.order import WriteOrder
from cstp_grpc.storage.reading import reading
from cstp_grpc.storage.tables import push_configs, task_notifications
from cstp_grpc.storage.text import storable
from cstp_grpc.tasks.push_store import PushConfig, TaskNotification
from cstp_grpc.tasks.store import Task
from cstp_grpc.vocabulary import PushFormat, TaskState

kept = push_configs.c
waiting = task_notifications.c
CONFIG_KEY = (kept.agent, kept.task_id, kept.id)
KEY = (waiting.agent, waiting.task_id, waiting.config_id, waiting.version)
KEY_NAMES = {column.name for column in KEY}
CONFIGS = (
    select(push_configs)
    .where(kept.agent == bindparam("of_agent"), kept.task_id == bindparam("of_task"), kept.id > bindparam("after"))
    .order_by(kept.id)
)
DUE = select(func.count()).where(waiting.agent == bindparam("of_agent"), waiting.caused_at <= bindparam("at"))
SNAPSHOT = (
    update(task_notifications)
    .where(
        waiting.agent == bindparam("of_agent"),
        waiting.task_id == bindparam("of_task"),
        waiting.version == bindparam("of_version"),
    )
    .values(parameters(("context_id", "state", "changed_at", "content")))
)


class SqlPushStore:
    """Keeps configurations in the table `push_configs`, notifications in `task_notifications`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        dialect = engine.dialect
        self._upsert = postgresql.insert if dialect.name == "postgresql" else sqlite.insert
        self._order = WriteOrder(engine)
        notification = self._upsert(task_notifications).values(parameters(waiting.keys()))
        replaced = {name: notification.excluded[name] for name in waiting.keys() if name not in KEY_NAMES}  # noqa: SIM118
        self._put = DriverStatement(notification.on_conflict_do_update(index_elements=KEY, set_=replaced), dialect)
        self._configs = DriverStatement(CONFIGS, dialect)
        next_due = select(waiting.next_attempt_at).where(is_first()).order_by(waiting.next_attempt_at).limit(1)
        self._next_due = DriverStatement(next_due, dialect)
        self._count_due = DriverStatement(DUE, dialect)
        self._keep_snapshot = DriverStatement(SNAPSHOT, dialect)

    def reading(self) -> AbstractContextManager[Connection]:
        """Return a connection for reading alone, in a block. Raises QueryFailed if the database does not answer."""
        return reading(self._engine)

    def hold(self, connection: Connection) -> None:
        """Keep the changes of other servers waiting until the transaction ends; see `WriteOrder`."""
        self._order.hold(connection)

    def put_config(self, connection: Connection, agent: str, task_id: str, config: PushConfig, at: datetime) -> None:
        """Keep a configuration of a task, in the place of one of the same id."""
        row = {**asdict(config), "agent": agent, "task_id": task_id, "set_at": at, "format": config.format.value}
        statement = self._upsert(push_configs).values(row)
        connection.execute(statement.on_conflict_do_update(index_elements=CONFIG_KEY, set_=row))

    def remove_config(self, connection: Connection, agent: str, task_id: str, config_id: str) -> None:
        """Remove a configuration, if it exists, with its notifications."""
        connection.execute(delete(push_configs).where(of_config(agent, task_id, config_id)))

    def configs(self, connection: Connection, agent: str, task_id: str, after: str = "") -> Sequence[PushConfig]:
        """Return the configurations of a task by rising id, from the one after `after` on."""
        values = {"of_agent": agent, "of_task": storable(task_id), "after": storable(after)}
        return [config_of(row) for row in self._configs.all(connection, values)]

    def config(self, connection: Connection, agent: str, task_id: str, config_id: str | None) -> PushConfig | None:
        """Return a configuration of a task, the one that was set last if no id is given; None if it does not exist."""
        query = select(push_configs).where(kept.agent == agent, kept.task_id == storable(task_id))
        if config_id is not None:
            query = query.where(kept.id == storable(config_id))
        row = connection.execute(query.order_by(kept.set_at.desc(), kept.id).limit(1)).first()
        return None if row is None else config_of(row)

    def put(self, connection: Connection, notifications: Sequence[TaskNotification]) -> None:
        """Keep notifications, each in the place of one on the same version and configuration."""
        for notification in notifications:
            self._put.run(connection, row_of(notification))

    def count_due(self, connection: Connection, agent: str, at: datetime) -> int:
        """Return how many notifications for an agent were caused by an instant and still wait."""
        row = self._count_due.first(connection, {"of_agent": agent, "at": at})
        assert row is not None, "a count has a row"
        count: int = row[0]
        return count

    def keep_snapshot(self, connection: Connection, agent: str, task: Task) -> None:
        """Keep a version of a task with the notifications on it, because it is about to be replaced."""
        self._keep_snapshot.run(
            connection,
            {
                "of_agent": agent,
                "of_task": task.id,
                "of_version": task.version,
                "context_id": task.context_id,
                "state": task.state.value,
                "changed_at": task.updated_at,
                "content": task.content,
            },
        )

    def next_due(self, connection: Connection) -> datetime | None:
        """Return when the next notification is due, of those that follow no other on the same configuration."""
        row = self._next_due.first(connection, {})
        return None if row is None else row[0]

    def take_due(
        self, connection: Connection, now: datetime, until: datetime, limit: int
    ) -> Sequence[TaskNotification]:
        """Return due notifications, the longest due first, and let them be due at `until`.

        One is left out while another on an earlier version waits for the same configuration.
        """
        self.hold(connection)
        query = (
            select(task_notifications)
            .where(waiting.next_attempt_at <= now, is_first())
            .order_by(waiting.next_attempt_at, waiting.id)
            .limit(limit)
        )
        taken = [replace(notification_of(row), next_attempt_at=until) for row in connection.execute(query)]
        for notification in taken:
            self.put_off(connection, notification)
        return taken

    def put_off(self, connection: Connection, notification: TaskNotification) -> None:
        """Write the attempts of a notification and when the next is due, unless it is gone."""
        self.hold(connection)
        connection.execute(
            update(task_notifications)
            .where(is_it(notification))
            .values(attempts=notification.attempts, next_attempt_at=notification.next_attempt_at)
        )

    def remove(self, connection: Connection, notification: TaskNotification) -> bool:
        """Remove a notification and return whether it existed."""
        self.hold(connection)
        return connection.execute(delete(task_notifications).where(is_it(notification))).rowcount == 1


def of_config(agent: str, task_id: str, config_id: str) -> ColumnElement[bool]:
    """Return the condition that selects one configuration."""
    return and_(kept.agent == agent, kept.task_id == storable(task_id), kept.id == storable(config_id))


def is_it(notification: TaskNotification) -> ColumnElement[bool]:
    """Return the condition that selects one notification."""
    # One that took its place in between has another id.
    values = (notification.agent, notification.task_id, notification.config_id, notification.version)
    return and_(waiting.id == notification.id, *(column == value for column, value in zip(KEY, values, strict=True)))


def is_first() -> ColumnElement[bool]:
    """Return the condition that selects notifications that follow no other on the same configuration."""
    earlier = task_notifications.alias("earlier")
    same = (earlier.c[column.name] == column for column in KEY[:-1])
    return ~exists(select(1).where(*same, earlier.c.version < waiting.version))


def config_of(row: Sequence[Any]) -> PushConfig:
    """Return a row of `push_configs` as a configuration."""
    _agent, _task_id, config_id, _set_at, written, url, token, scheme, credentials = row
    return PushConfig(config_id, PushFormat(written), url, token, scheme, credentials)


def row_of(notification: TaskNotification) -> dict[str, object]:
    """Return a notification as a row of `task_notifications`."""
    shot = notification.snapshot
    return {
        "agent": notification.agent,
        "task_id": notification.task_id,
        "config_id": notification.config_id,
        "version": notification.version,
        "id": notification.id,
        "caused_at": notification.caused_at,
        "attempts": notification.attempts,
        "next_attempt_at": notification.next_attempt_at,
        "context_id": None if shot is None else shot.context_id,
        "state": None if shot is None else shot.state.value,
        "changed_at": None if shot is None else shot.updated_at,
        "content": None if shot is None else shot.content,
    }


def notification_of(row: Row[Any]) -> TaskNotification:
    """Return a row of `task_notifications` as a notification."""
    shot = None
    if row.content is not None:
        shot = Task(row.task_id, row.context_id, TaskState(row.state), row.content, row.version, row.changed_at)
    return TaskNotification(
        row.id,
        row.agent,
        row.task_id,
        row.config_id,
        row.version,
        row.caused_at,
        row.next_attempt_at,
        row.attempts,
        shot,
    )
