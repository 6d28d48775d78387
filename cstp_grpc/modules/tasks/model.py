"""Tasks, their states, push configurations and notifications."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Final

from cstp_grpc.common.lazy_dataclass import dataclass, field
from cstp_grpc.contract.enums import PushFormat, TaskState
from cstp_grpc.platform.storage.pagination import Page

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


def observation_time(clock: Callable[[], datetime], kept: timedelta) -> ObservationTime:
    """Return the present instant; tasks exist for the time `kept` after their last change."""
    now = truncate_to_milliseconds(clock())
    return ObservationTime(now, now - kept)


def truncate_to_milliseconds(instant: datetime) -> datetime:
    # The precision of timestamps in A2A: filters and page tokens then compare equal to what callers have seen.
    return instant.replace(microsecond=instant.microsecond // 1000 * 1000)


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

    @property
    def key(self) -> str:
        return self.id

    def __str__(self) -> str:
        """Return its name for the log, without its URL."""
        return f"the push notification {self.id} for {self.agent} on version {self.version} of task {self.task_id}"
