"""Tasks, their states and push configurations, and the ports of their stores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Protocol

from cstp_grpc.contract.enums import PushFormat, TaskState
from cstp_grpc.platform.storage.pagination import Page, PageRequest
from cstp_grpc.platform.storage.unit_of_work import UnitOfWork

STATE_AFTER_TIMEOUT: Final[Mapping[TaskState, TaskState]] = {
    TaskState.SUBMITTED: TaskState.FAILED,
    TaskState.WORKING: TaskState.FAILED,
    # A guardrail asked for input that did not come, so that its verdict stands.
    TaskState.INPUT_REQUIRED: TaskState.REJECTED,
    # Nobody approved it in time.
    TaskState.AUTH_REQUIRED: TaskState.REJECTED,
}
"""The states that can still change, and the state that each becomes when the time of the task has run out."""

WAITING: Final = frozenset({TaskState.INPUT_REQUIRED, TaskState.AUTH_REQUIRED})
"""The states in which the task waits for its owner, or for people to approve it."""
CANCELABLE: Final = frozenset({TaskState.SUBMITTED, *WAITING})
"""The states in which the action of the task was not sent yet, so that canceling prevents it."""


def states_that_may_become(state: TaskState) -> frozenset[TaskState]:
    return CANCELABLE if state is TaskState.CANCELED else frozenset(STATE_AFTER_TIMEOUT)


@dataclass(frozen=True, slots=True)
class Task:
    """A task in its present state, identified by its agent and id.

    `version` counts how often it was saved; `updated_at` is when it entered its state, in whole milliseconds, aware, in
    UTC. Only bridges interpret `content`.
    """

    id: str
    context_id: str
    state: TaskState
    content: bytes
    version: int
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class TaskRecord:
    """A task as it was saved, whether or not its time has run out, and when it settles."""

    task: Task
    settles_at: datetime


@dataclass(frozen=True, slots=True)
class ObservationTime:
    """The instant at which tasks are read.

    A task that settled by `now` without having ended has failed, since nobody works on it any more; one that settled at
    `expired` or before no longer exists.
    """

    now: datetime
    expired: datetime


@dataclass(frozen=True, slots=True)
class TaskFilter:
    """Conditions that tasks must all meet; None or empty does not restrict.

    `states` means any of; `updated_after` is inclusive.
    """

    agent: str
    context_id: str | None = None
    states: tuple[TaskState, ...] = ()
    updated_after: datetime | None = None


@dataclass(frozen=True, slots=True)
class TaskPage(Page[Task]):
    """A page of tasks, and the number of tasks on all pages."""

    total: int = 0


class TaskStore(Protocol):
    """Stores each task once per agent and id.

    A task settles when it ends, or else when its time runs out.
    """

    @property
    def is_local(self) -> bool:
        """Whether the database is a file of this machine."""

    def add(
        self, unit_of_work: UnitOfWork, agent: str, task: Task, settles_at: datetime, observed: ObservationTime
    ) -> bool:
        """Insert a task within a transaction, and return False if its id exists."""

    def replace(
        self, unit_of_work: UnitOfWork, agent: str, task: Task, settles_at: datetime, observed: ObservationTime
    ) -> bool:
        """Replace the previous version of a task within a transaction.

        Returns False if that version does not exist or may not change to the task's state.
        """

    def load(self, unit_of_work: UnitOfWork, agent: str, task_id: str, *, lock: bool = False) -> TaskRecord | None:
        """Return a task as it was saved, even if expired, within a transaction; None if it does not exist.

        `lock` makes other changes wait until the transaction ends.
        """

    def get(self, agent: str, task_id: str, observed: ObservationTime) -> Task | None:
        """Return a task in its state at an instant; None if the agent has none of that id.

        Raises QueryFailed if the database does not respond.
        """

    def page(self, conditions: TaskFilter, request: PageRequest, observed: ObservationTime) -> TaskPage:
        """Return the tasks that meet all conditions, last changed first, then by falling id.

        Raises InvalidArgument if the page token is not one of this listing, QueryFailed if the database does not
        respond.
        """

    def remove_expired(self, unit_of_work: UnitOfWork, observed: ObservationTime, limit: int) -> int:
        """Remove up to `limit` expired tasks within a transaction, and return how many."""


@dataclass(frozen=True, slots=True)
class PushConfig:
    """Where the owner of a task is notified of its changes, and with which secrets.

    `scheme` and `credentials` become the header `Authorization`, `token` a header of its own; empty ones are omitted.
    """

    id: str
    format: PushFormat
    url: str = field(repr=False)
    token: str = field(default="", repr=False)
    scheme: str = ""
    credentials: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class TaskNotification:
    """A queued notification about one version of a task; `id` is the same in every attempt.

    `snapshot` is that version if another has replaced it; None for the stored one, and for the one that follows when
    the time of a task at work runs out. Instants are aware, in UTC.
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
        """Return its name for the log, without its URL."""
        return f"the push notification {self.id} for {self.agent} on version {self.version} of task {self.task_id}"


class PushStore(Protocol):
    """Stores push configurations and queued notifications.

    Removing a task removes its configurations, and removing a configuration its notifications. A method that takes a
    unit of work belongs to its transaction.
    """

    def read_snapshot(self) -> AbstractContextManager[UnitOfWork]:
        """Open a unit of work for reading. Raises QueryFailed if the database does not respond."""

    def hold(self, unit_of_work: UnitOfWork) -> None:
        """Make the changes of other servers wait until the transaction ends; see `GlobalWriteLock`."""

    def put_config(self, unit_of_work: UnitOfWork, agent: str, task_id: str, config: PushConfig, at: datetime) -> None:
        """Store a configuration of a task, replacing one of the same id."""

    def remove_config(self, unit_of_work: UnitOfWork, agent: str, task_id: str, config_id: str) -> None:
        """Remove a configuration, if it exists, with its notifications."""

    def configs(self, unit_of_work: UnitOfWork, agent: str, task_id: str, after: str = "") -> Sequence[PushConfig]:
        """Return the configurations of a task by rising id, starting after the id `after`."""

    def config(self, unit_of_work: UnitOfWork, agent: str, task_id: str, config_id: str | None) -> PushConfig | None:
        """Return a configuration of a task, without an id the one that was set last; None if there is none."""

    def put(self, unit_of_work: UnitOfWork, notifications: Sequence[TaskNotification]) -> None:
        """Store notifications, each replacing one about the same version and configuration."""

    def count_due(self, unit_of_work: UnitOfWork, agent: str, at: datetime) -> int:
        """Return how many queued notifications of an agent were caused at or before an instant."""

    def keep_snapshot(self, unit_of_work: UnitOfWork, agent: str, task: Task) -> None:
        """Store a version of a task with the notifications about it, because it is about to be replaced."""

    def next_due(self, unit_of_work: UnitOfWork) -> datetime | None:
        """Return when the next notification is due that is the first of its configuration's queue."""

    def take_due(
        self, unit_of_work: UnitOfWork, now: datetime, until: datetime, limit: int
    ) -> Sequence[TaskNotification]:
        """Return due notifications, the longest due first, leased until `until`.

        A notification is left out while one about an earlier version waits for the same configuration.
        """

    def postpone(
        self, unit_of_work: UnitOfWork, notification: TaskNotification, until: datetime, attempts: int
    ) -> None:
        """Store when a notification is due and how many attempts failed, unless it was removed."""

    def remove(self, unit_of_work: UnitOfWork, notification: TaskNotification) -> bool:
        """Remove a notification and return True if it existed."""
