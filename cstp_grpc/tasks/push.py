"""Push notifications on tasks: their configurations, and what is put into the outbox when a task changes."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Final

from sqlalchemy import Connection

from cstp_grpc.audit.model import AuditEntry, AuditEvent
from cstp_grpc.errors import InvalidArgument, NotFound, RateLimited
from cstp_grpc.storage.page_token import read_token, write_token
from cstp_grpc.storage.paging import Page, PageRequest
from cstp_grpc.storage.writer import Writer
from cstp_grpc.tasks.push_addresses import PushAddresses
from cstp_grpc.tasks.push_store import PushConfig, PushStore, TaskNotification
from cstp_grpc.tasks.states import LAPSED
from cstp_grpc.tasks.store import Moment, TaskRecord, TaskStore
from cstp_grpc.vocabulary import PushFormat, TaskState
from cstp_grpc.webhooks.sending import AuditTrail

logger = logging.getLogger(__name__)

MAX_CONFIGS: Final = 10
"""Configurations of one task at the most."""
AT_WORK: Final = frozenset({TaskState.SUBMITTED, TaskState.WORKING})
"""The states in which nobody needs to hear of a task before it changes."""
DEFAULT_CONFIG: Final = "default"
"""The id of a configuration that a client of A2A 0.3 sets without naming it."""
MAX_WAITING: Final = 1000
"""Notifications that may wait for one agent; what comes beyond them is not told."""


class PushNotifications:
    """Keeps configurations for the owners of tasks, and notes what they are told.

    `wake` is called when there is something to send; within the transaction, which is enough because what then looks
    for it has to wait for the same writer.
    """

    def __init__(
        self,
        store: PushStore,
        tasks: TaskStore,
        addresses: PushAddresses,
        writer: Writer,
        trail: AuditTrail,
        wake: Callable[[], None],
    ) -> None:
        self._store = store
        self._tasks = tasks
        self._addresses = addresses
        self._writer = writer
        self._trail = trail
        self._wake = wake

    def create(self, agent: str, task_id: str, config: PushConfig, moment: Moment) -> PushConfig:
        """Return a configuration once it is on disk, in the place of one of the same id; an empty id is replaced.

        A task that is not at work is told at once as it is, so that its owner misses nothing that came in between.
        Raises NotFound, InvalidArgument and Unavailable.
        """

        def job(connection: Connection) -> PushConfig:
            self._store.hold(connection)
            stored = self._existing_task(connection, agent, task_id, moment, lock=True)
            made = self._put_config(connection, agent, task_id, config, moment.now)
            self._tell(connection, agent, [made], stored, moment.now, is_new=False)
            return made

        return self._writer.run(job)

    def get(self, agent: str, task_id: str, config_id: str | None, moment: Moment) -> PushConfig:
        """Return a configuration of a task, the one that was set last if no id is given. Raises NotFound."""
        with self._store.reading() as connection:
            self._existing_task(connection, agent, task_id, moment)
            config = self._store.config(connection, agent, task_id, config_id)
        if config is None:
            raise NotFound(f"the task {task_id} has no such push configuration", metadata={"id": task_id})
        return config

    def page(self, agent: str, task_id: str, request: PageRequest, moment: Moment) -> Page[PushConfig]:
        """Return a page of the configurations of a task by rising id. Raises NotFound and InvalidArgument."""
        conditions = ("push_configs", agent, task_id)
        after = str(read_token(request.token, conditions, (str,))[0]) if request.token else ""
        with self._store.reading() as connection:
            self._existing_task(connection, agent, task_id, moment)
            found = tuple(self._store.configs(connection, agent, task_id, after))
        items = found[: request.limit]
        return Page(items, write_token(conditions, (items[-1].id,)) if len(found) > len(items) else "")

    def delete(self, agent: str, task_id: str, config_id: str, moment: Moment) -> None:
        """Remove a configuration with what waits for it, if it exists. Raises NotFound and Unavailable."""

        def job(connection: Connection) -> None:
            self._store.hold(connection)
            self._existing_task(connection, agent, task_id, moment)
            self._store.remove_config(connection, agent, task_id, config_id)

        self._writer.run(job)

    def prepare_change(self, connection: Connection, agent: str, task_id: str, *, configures: bool) -> None:
        """Prepare for a task to be replaced; `configures` says that a configuration comes with its next version."""
        if not configures and not self._store.configs(connection, agent, task_id):
            return
        # Held before the task's row is locked, which is the order that all who hold it keep.
        self._store.hold(connection)
        stored = self._tasks.load(connection, agent, task_id)
        if stored is not None:
            self._store.keep_snapshot(connection, agent, stored.task)

    def record_change(
        self, connection: Connection, agent: str, stored: TaskRecord, config: PushConfig | None, now: datetime
    ) -> None:
        """Note what is told of a version of a task that was just stored. Raises InvalidArgument for the config."""
        if config is not None:
            self._put_config(connection, agent, stored.task.id, config, now)
        elif stored.task.version == 1:
            return
        configs = self._store.configs(connection, agent, stored.task.id)
        if configs:
            self._tell(connection, agent, configs, stored, now, is_new=True)

    def _existing_task(
        self, connection: Connection, agent: str, task_id: str, moment: Moment, *, lock: bool = False
    ) -> TaskRecord:
        """Return a task that has not expired; `lock` keeps the changes of others waiting. Raises NotFound."""
        stored = self._tasks.load(connection, agent, task_id, lock=lock)
        if stored is None or stored.settles_at <= moment.expired:
            raise NotFound(f"there is no task {task_id}", metadata={"id": task_id})
        return stored

    def _put_config(
        self, connection: Connection, agent: str, task_id: str, config: PushConfig, now: datetime
    ) -> PushConfig:
        """Return a configuration as it is kept. Raises InvalidArgument."""
        if self._addresses.address(config.url) is None:
            raise InvalidArgument.field("push_config.url", "is not an address that is notified here")
        made = replace(config, id=config.id or new_config_id(config.format))
        others = [each for each in self._store.configs(connection, agent, task_id) if each.id != made.id]
        if len(others) >= MAX_CONFIGS:
            raise InvalidArgument.field("push_config", f"is one too many: a task has at most {MAX_CONFIGS}")
        self._store.put_config(connection, agent, task_id, made, now)
        return made

    def _tell(
        self,
        connection: Connection,
        agent: str,
        configs: Sequence[PushConfig],
        stored: TaskRecord,
        now: datetime,
        *,
        is_new: bool,
    ) -> None:
        """Note what configurations are told: of a version that is new or final, and of the end of the task's time."""
        task, settles_at = stored.task, stored.settles_at
        can_lapse = task.state in LAPSED
        notifications: list[TaskNotification] = []
        if is_new or task.state not in AT_WORK:
            notifications += [new_notification(agent, task.id, each.id, task.version, now) for each in configs]
            notifications = self._within_limit(connection, agent, notifications, now)
        if can_lapse:
            lapsed = task.version + 1
            notifications += [new_notification(agent, task.id, each.id, lapsed, settles_at) for each in configs]
        self._store.put(connection, notifications)
        self._wake()

    def _within_limit(
        self, connection: Connection, agent: str, notifications: list[TaskNotification], now: datetime
    ) -> list[TaskNotification]:
        """Return those notifications that may wait too; of the others it is recorded that they are not sent."""
        room = max(MAX_WAITING - self._store.count_due(connection, agent, now), 0)
        for notification in notifications[room:]:
            logger.warning("%s is not sent: %d wait for its agent already", notification, MAX_WAITING)
            self._trail.append(connection, audit_entry(notification, now, "dropped", RateLimited.reason))
        return notifications[:room]


def audit_entry(notification: TaskNotification, at: datetime, action: str, error: str | None) -> AuditEntry:
    """Return the entry for a notification that was sent or will not be."""
    return AuditEntry(
        timestamp=at,
        event=AuditEvent.PUSH_NOTIFICATION_SENT,
        requesting_agent=notification.agent,
        request_id=notification.id,
        action=action,
        correlation_id=notification.task_id,
        error=error,
    )


def new_notification(agent: str, task_id: str, config_id: str, version: int, caused_at: datetime) -> TaskNotification:
    """Return a notification on a version of a task that is due when it is caused."""
    return TaskNotification(str(uuid.uuid4()), agent, task_id, config_id, version, caused_at, caused_at)


def new_config_id(written: PushFormat) -> str:
    """Return the id of a configuration that comes without one.

    In A2A 0.3 such a configuration is the only one of its kind, which the next one replaces.
    """
    return DEFAULT_CONFIG if written is PushFormat.A2A_0_3 else str(uuid.uuid4())
