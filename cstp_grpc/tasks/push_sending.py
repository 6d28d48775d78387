"""What is sent of the push notifications that wait: the queue of a `WebhookOutbox`."""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final, Protocol

from sqlalchemy import Connection

from cstp_grpc.audit.model import AuditEntry
from cstp_grpc.tasks.push import audit_entry
from cstp_grpc.tasks.push_addresses import PushAddresses
from cstp_grpc.tasks.push_store import PushConfig, PushStore, TaskNotification
from cstp_grpc.tasks.states import LAPSED
from cstp_grpc.tasks.store import Task, TaskStore
from cstp_grpc.vocabulary import PushFormat
from cstp_grpc.webhooks.sending import GivenUp, WebhookRequest

logger = logging.getLogger(__name__)

TOKEN_HEADER: Final = "x-a2a-notification-token"  # noqa: S105 - the name of a header
LANES: Final = 4
"""How many lanes the notifications for one agent have, so that a slow receiver delays only some of them."""
CONTENT_TYPES: Final[Mapping[PushFormat, str]] = {
    PushFormat.A2A_1_0: "application/a2a+json",
    PushFormat.A2A_0_3: "application/json",
}


class TaskRenderer(Protocol):
    """Writes tasks as receivers read them."""

    def render(self, task: Task, written: PushFormat) -> bytes | None:
        """Return the body of a notification; None if the content is no task of A2A."""


class TaskNotificationQueue:
    """The push notifications on tasks. One on a version of a task that expired after `kept` is not sent any more."""

    def __init__(
        self,
        store: PushStore,
        tasks: TaskStore,
        addresses: PushAddresses,
        renderer: TaskRenderer,
        clock: Callable[[], datetime],
        kept: timedelta,
    ) -> None:
        self._store = store
        self._tasks = tasks
        self._addresses = addresses
        self._renderer = renderer
        self._clock = clock
        self._kept = kept

    def next_due(self, connection: Connection) -> datetime | None:
        """Return when the next notification is due; None if there is none."""
        return self._store.next_due(connection)

    def take_due(
        self, connection: Connection, now: datetime, until: datetime, limit: int
    ) -> Sequence[TaskNotification]:
        """Return due notifications, the longest due first, and let them be due at `until`."""
        return self._store.take_due(connection, now, until, limit)

    def put_off(self, connection: Connection, item: TaskNotification, until: datetime, attempts: int) -> None:
        """Write when a notification is due and how often it was tried, unless it is gone."""
        self._store.put_off(connection, replace(item, next_attempt_at=until, attempts=attempts))

    def remove(self, connection: Connection, item: TaskNotification) -> bool:
        """Remove a notification and return whether it existed."""
        return self._store.remove(connection, item)

    def build_request(self, connection: Connection, item: TaskNotification) -> WebhookRequest | None:
        """Return what is sent of a notification; None if it was withdrawn or put off. Raises GivenUp."""
        config = self._store.config(connection, item.agent, item.task_id, item.config_id)
        task = item.snapshot or self._told_task(connection, item)
        if config is None or task is None:
            return None
        address = self._addresses.address(config.url)
        if address is None:
            raise GivenUp("its address is not notified any more")
        return WebhookRequest(address, lambda: self._render(task, config.format), headers_of(config))

    def audit_entry(self, item: TaskNotification, at: datetime, error: str | None) -> AuditEntry:
        """Return the entry for a notification that was taken, or given up with an error."""
        return audit_entry(item, at, f"version {item.version} of the task to {item.config_id}", error)

    def lane_of(self, item: TaskNotification) -> str:
        """Return whose threads send a notification: those of its agent, by its task."""
        return f"{item.agent}/{zlib.crc32(item.task_id.encode()) % LANES}"

    def _render(self, task: Task, written: PushFormat) -> bytes:
        body = self._renderer.render(task, written)
        if body is None:
            raise GivenUp("the task holds what no bridge kept")
        return body

    def _told_task(self, connection: Connection, item: TaskNotification) -> Task | None:
        """Return the task in the version that a notification is on; None if there is nothing to tell now.

        The version after that of a task that can still change is the one in which its time has run out.
        """
        stored = self._tasks.load(connection, item.agent, item.task_id)
        now = self._clock()
        if stored is None or stored.settles_at + self._kept <= now:
            self._withdraw(connection, item)
            return None
        task = stored.task
        if task.version == item.version:
            return task
        if task.version + 1 != item.version or task.state not in LAPSED:
            self._withdraw(connection, item)
            return None
        if stored.settles_at > now:
            self._store.put_off(connection, replace(item, next_attempt_at=stored.settles_at))
            return None
        return replace(task, state=LAPSED[task.state], updated_at=stored.settles_at)

    def _withdraw(self, connection: Connection, item: TaskNotification) -> None:
        logger.info("%s is withdrawn: that version is not known any more", item)
        self._store.remove(connection, item)


def headers_of(config: PushConfig) -> dict[str, str]:
    """Return the headers by which a receiver knows who notifies it."""
    headers = {"content-type": CONTENT_TYPES[config.format]}
    if config.token:
        headers[TOKEN_HEADER] = config.token
    if config.scheme and config.credentials:
        headers["authorization"] = f"{config.scheme} {config.credentials}"
    return headers
