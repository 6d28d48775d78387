"""Where tasks are kept: the Protocol that every driver fulfils, and what it speaks in."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from sqlalchemy import Connection

from cstp_grpc.storage.paging import Page, PageRequest
from cstp_grpc.vocabulary import TaskState


@dataclass(frozen=True, slots=True)
class Task:
    """A task as it stands; with its agent, the id identifies it.

    `version` counts how often it was saved; `updated_at` is when it came to its state, in whole milliseconds, aware, in
    UTC. What `content` means is the bridge's business.
    """

    id: str
    context_id: str
    state: TaskState
    content: bytes
    version: int
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class TaskRecord:
    """A task as it was saved, whatever has run out since, and when it settles."""

    task: Task
    settles_at: datetime


@dataclass(frozen=True, slots=True)
class Moment:
    """The instant at which tasks are looked at.

    A task that settled by `now` without having ended has failed, since whoever was at it is gone; one that settled at
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
    """Tasks in their order, and how many there are on all pages."""

    total: int = 0


class TaskStore(Protocol):
    """Keeps each task once for its agent and id.

    A task settles when it ends or else when its time runs out.
    """

    @property
    def is_local(self) -> bool:
        """Whether the database is a file of this machine."""

    def add(self, connection: Connection, agent: str, task: Task, settles_at: datetime, moment: Moment) -> bool:
        """Add a task within a transaction, and return whether there was none of its id.

        Raises SQLAlchemyError where the database does not answer.
        """

    def replace(self, connection: Connection, agent: str, task: Task, settles_at: datetime, moment: Moment) -> bool:
        """Put a task in the place of the version before it within a transaction, and return whether that exists and may
        change to the task's state.

        Raises SQLAlchemyError where the database does not answer.
        """

    def load(self, connection: Connection, agent: str, task_id: str, *, lock: bool = False) -> TaskRecord | None:
        """Return a task as it was saved, also an expired one, within a transaction; None if none was.

        `lock` keeps the changes of others waiting until the transaction ends. Raises SQLAlchemyError where the database
        does not answer.
        """

    def get(self, agent: str, task_id: str, moment: Moment) -> Task | None:
        """Return a task as it stands; None where the agent has none of that id.

        Raises QueryFailed where the database does not answer.
        """

    def page(self, conditions: TaskFilter, request: PageRequest, moment: Moment) -> TaskPage:
        """Return the tasks that meet all conditions, last changed first and by falling id at the same instant.

        Raises InvalidArgument where the page token is not one of this listing, QueryFailed where the database does not
        answer.
        """

    def remove_expired(self, connection: Connection, moment: Moment, limit: int) -> int:
        """Remove up to `limit` expired tasks within a transaction, and return how many.

        Raises SQLAlchemyError where the database does not answer.
        """
