"""Where push notifications on tasks are kept: the Protocol that every driver fulfils, and what it speaks in."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from sqlalchemy import Connection

from cstp_grpc.tasks.store import Task
from cstp_grpc.vocabulary import PushFormat


@dataclass(frozen=True, slots=True)
class PushConfig:
    """Where the owner of a task is notified of its changes, and with which secrets.

    `scheme` and `credentials` become the header `Authorization`, `token` one of its own; empty ones do not.
    """

    id: str
    format: PushFormat
    url: str = field(repr=False)
    token: str = field(default="", repr=False)
    scheme: str = ""
    credentials: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class TaskNotification:
    """A version of a task that is to be told to one of its configurations; `id` is the same in every attempt.

    `snapshot` is that version if another has replaced it; None for the stored one, and for the one that comes after it
    when the time of a task at work runs out. Instants are aware, in UTC.
    """

    id: str
    agent: str
    task_id: str
    config_id: str
    version: int
    caused_at: datetime
    next_attempt_at: datetime
    attempts: int = 0
    snapshot: Task | None = field(default=None, repr=False)

    def __str__(self) -> str:
        """Return what it is called in the log, without its address."""
        return f"the push notification {self.id} for {self.agent} on version {self.version} of task {self.task_id}"


class PushStore(Protocol):
    """Keeps configurations, and the notifications that wait.

    A task takes its configurations along when it is removed, a configuration its notifications. Everything belongs to
    the transaction of the connection it is given and raises SQLAlchemyError.
    """

    def reading(self) -> AbstractContextManager[Connection]:
        """Return a connection for reading alone, in a block. Raises QueryFailed if the database does not answer."""

    def hold(self, connection: Connection) -> None:
        """Keep the changes of other servers waiting until the transaction ends; see `WriteOrder`."""

    def put_config(self, connection: Connection, agent: str, task_id: str, config: PushConfig, at: datetime) -> None:
        """Keep a configuration of a task, in the place of one of the same id."""

    def remove_config(self, connection: Connection, agent: str, task_id: str, config_id: str) -> None:
        """Remove a configuration, if it exists, with its notifications."""

    def configs(self, connection: Connection, agent: str, task_id: str, after: str = "") -> Sequence[PushConfig]:
        """Return the configurations of a task by rising id, from the one after `after` on."""

    def config(self, connection: Connection, agent: str, task_id: str, config_id: str | None) -> PushConfig | None:
        """Return a configuration of a task, the one that was set last if no id is given; None if it does not exist."""

    def put(self, connection: Connection, notifications: Sequence[TaskNotification]) -> None:
        """Keep notifications, each in the place of one on the same version and configuration."""

    def count_due(self, connection: Connection, agent: str, at: datetime) -> int:
        """Return how many notifications for an agent were caused by an instant and still wait."""

    def keep_snapshot(self, connection: Connection, agent: str, task: Task) -> None:
        """Keep a version of a task with the notifications on it, because it is about to be replaced."""

    def next_due(self, connection: Connection) -> datetime | None:
        """Return when the next notification is due, of those that follow no other on the same configuration."""

    def take_due(
        self, connection: Connection, now: datetime, until: datetime, limit: int
    ) -> Sequence[TaskNotification]:
        """Return due notifications, the longest due first, and let them be due at `until`.

        One is left out while another on an earlier version waits for the same configuration.
        """

    def put_off(self, connection: Connection, notification: TaskNotification) -> None:
        """Write the attempts of a notification and when the next is due, unless it is gone."""

    def remove(self, connection: Connection, notification: TaskNotification) -> bool:
        """Remove a notification and return whether it existed."""
