"""Keeping tasks: what may replace what, when work counts as given up, and how long tasks stay."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Connection

from cstp_grpc.errors import Conflict, MethodNotFound, NotFound
from cstp_grpc.storage.paging import Page, PageRequest
from cstp_grpc.storage.writer import Job, Writer
from cstp_grpc.tasks.push import PushNotifications
from cstp_grpc.tasks.push_store import PushConfig
from cstp_grpc.tasks.states import LAPSED
from cstp_grpc.tasks.store import Moment, Task, TaskFilter, TaskPage, TaskRecord, TaskStore
from cstp_grpc.vocabulary import TaskState

TIME_LEFT = timedelta(minutes=5)
"""How long a task may take to end if its bridge does not say."""

INPUT_TIME = timedelta(days=1)
"""How long a task may wait for input if its bridge does not say."""

NAMESPACE = uuid.UUID("6a3f1d7e-52c4-4c0b-9a57-0d1c9f2e8b64")
"""What the ids of tasks that keys name are made with; another one would let repeated messages begin new tasks."""

MAX_PAGE = 100
"""Tasks on one page at the most."""

REMOVAL_BATCH = 100
"""Tasks removed in one transaction at the most, so that saves do not wait for long."""


@dataclass(frozen=True, slots=True)
class TaskContent:
    """What a bridge decides of a task."""

    id: str
    context_id: str
    state: TaskState
    content: bytes


class TaskKeeper:
    """Keeps tasks for their agents; for any other agent there is none of that id.

    Tasks are seen for the time `kept` after their last change. One that has not ended when its time has run out has
    failed at that instant. With `push`, owners are notified of changes.
    """

    def __init__(
        self,
        store: TaskStore,
        writer: Writer,
        clock: Callable[[], datetime],
        kept: timedelta,
        push: PushNotifications | None = None,
    ) -> None:
        self._store = store
        self._push = push
        self._writer = writer
        self._clock = clock
        self._kept = kept

    def save(
        self,
        agent: str,
        content: TaskContent,
        version: int,
        time_left: timedelta | None = None,
        config: PushConfig | None = None,
    ) -> Task:
        """Return a task once it is on disk: a new one where `version` is 0, else the next of that version.

        `time_left` is for a task that can still change; None is 5 minutes, or a day if it waits for input. `config`
        says where its owner is notified from this version on. Raises Conflict if a task of the id exists already, or
        notifications are off; Unavailable.
        """
        return self._writer.run(self._saving(agent, content, version, time_left, config))

    async def write(
        self,
        agent: str,
        content: TaskContent,
        version: int,
        time_left: timedelta | None = None,
        config: PushConfig | None = None,
    ) -> Task:
        """Return a task once it is on disk, as `save` does, without holding the event loop."""
        return await self._writer.write(self._saving(agent, content, version, time_left, config))

    def _saving(
        self, agent: str, content: TaskContent, version: int, time_left: timedelta | None, config: PushConfig | None
    ) -> Job[Task]:
        """Return what saves a task within a transaction. Raises MethodNotFound."""
        push = self._push if config is None else self._required_push()

        def job(connection: Connection) -> Task:
            moment = self._moment()
            if push is not None and version:
                push.prepare_change(connection, agent, content.id, configures=config is not None)
            task = Task(content.id, content.context_id, content.state, content.content, version + 1, moment.now)
            settles_at = settling(task, usual_time(content.state) if time_left is None else time_left)
            put = self._store.replace if version else self._store.add
            if not put(connection, agent, task, settles_at, moment):
                raise refused(content.id, version)
            if push is not None:
                push.record_change(connection, agent, TaskRecord(task, settles_at), config, moment.now)
            return task

        return job

    @property
    def reads_are_short(self) -> bool:
        """Whether reading a task waits for nothing but a file of this machine."""
        return self._store.is_local

    def get(self, agent: str, task_id: str) -> Task:
        """Return a task of the agent's. Raises NotFound and QueryFailed."""
        task = self._store.get(agent, task_id, self._moment())
        if task is None:
            raise NotFound(f"there is no task {task_id}", metadata={"id": task_id})
        return task

    def find(self, agent: str, key: str) -> tuple[str, Task | None]:
        """Return the id of the task that a key names for an agent, and the task, or None if it is not kept.

        Raises QueryFailed.
        """
        task_id = str(uuid.uuid5(NAMESPACE, json.dumps([agent, key])))
        return task_id, self._store.get(agent, task_id, self._moment())

    def page(self, conditions: TaskFilter, request: PageRequest) -> TaskPage:
        """Return the tasks that meet all conditions, last changed first; a page holds at most 100.

        Raises InvalidArgument where the page token is not one of this listing, and QueryFailed.
        """
        bounded = PageRequest(min(request.limit, MAX_PAGE), request.token)
        return self._store.page(conditions, bounded, self._moment())

    def create_push_config(self, agent: str, task_id: str, config: PushConfig) -> PushConfig:
        """Return a configuration of a task once it is on disk, with its id; see `PushNotifications.create`.

        Raises MethodNotFound too.
        """
        return self._required_push().create(agent, task_id, config, self._moment())

    def get_push_config(self, agent: str, task_id: str, config_id: str | None) -> PushConfig:
        """Return a configuration of a task, the one that was set last if no id is given.

        Raises NotFound, MethodNotFound and QueryFailed.
        """
        return self._required_push().get(agent, task_id, config_id, self._moment())

    def page_push_configs(self, agent: str, task_id: str, request: PageRequest) -> Page[PushConfig]:
        """Return a page of the configurations of a task by rising id.

        Raises NotFound, InvalidArgument for the page token, MethodNotFound and QueryFailed.
        """
        return self._required_push().page(agent, task_id, request, self._moment())

    def delete_push_config(self, agent: str, task_id: str, config_id: str) -> None:
        """Remove a configuration of a task, if it exists. Raises NotFound, MethodNotFound and Unavailable."""
        self._required_push().delete(agent, task_id, config_id, self._moment())

    def remove_expired(self) -> int:
        """Remove up to REMOVAL_BATCH tasks that have expired, and return how many.

        Raises Unavailable, or SQLAlchemyError where the database refuses.
        """
        return self._writer.run(
            lambda connection: self._store.remove_expired(connection, self._moment(), REMOVAL_BATCH)
        )

    def _required_push(self) -> PushNotifications:
        if self._push is None:
            raise MethodNotFound("push notifications are off here")
        return self._push

    def _moment(self) -> Moment:
        now = whole_milliseconds(self._clock())
        return Moment(now, now - self._kept)


def usual_time(state: TaskState) -> timedelta:
    """Return how long a task may stay in a state that can change."""
    return INPUT_TIME if state is TaskState.INPUT_REQUIRED else TIME_LEFT


def settling(task: Task, time_left: timedelta) -> datetime:
    """Return when a task has settled: at once if it has ended, else when its time has run out."""
    if task.state not in LAPSED:
        return task.updated_at
    return whole_milliseconds(task.updated_at + time_left)


def whole_milliseconds(instant: datetime) -> datetime:
    """Return an instant without what is finer than milliseconds."""
    return instant.replace(microsecond=instant.microsecond // 1000 * 1000)


def refused(task_id: str, version: int) -> Conflict:
    """Return the error for a task that cannot be saved."""
    if version:
        return Conflict(f"The task {task_id} cannot change so in version {version}", metadata={"id": task_id})
    return Conflict(f"There is a task {task_id} already", metadata={"id": task_id})
