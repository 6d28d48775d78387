"""The repository of tasks: versions, time limits, and removal after expiry."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

from cstp_grpc.common.lazy_dataclass import dataclass
from cstp_grpc.contract.enums import TaskState
from cstp_grpc.contract.errors import Conflict, MethodNotFound, NotFound
from cstp_grpc.contract.task_ids import derive_task_id
from cstp_grpc.modules.tasks import model
from cstp_grpc.modules.tasks.push_notifications import PushNotifications
from cstp_grpc.modules.tasks.sql_store import SqlTaskStore
from cstp_grpc.platform.storage.pagination import PageRequest
from cstp_grpc.platform.storage.unit_of_work import UnitOfWork
from cstp_grpc.platform.storage.writer import GroupCommitWriter

DEFAULT_WORK_TIME = timedelta(minutes=5)
"""The time limit of a task at work if its bridge sets none. Chosen: longer than any call that a bridge waits for."""

DEFAULT_INPUT_TIME = timedelta(days=1)
"""The time limit of a task that waits for input if its bridge sets none. Chosen: a person may have to answer."""

MAX_PAGE = 100
"""Tasks on a page at most, as A2A bounds the page size of ListTasks."""

REMOVAL_BATCH = 100
"""Tasks that one transaction removes at most. Chosen: saves wait for it only briefly."""


@dataclass(frozen=True, slots=True)
class TaskContent:
    """The part of a task that its bridge determines."""

    id: str
    context_id: str
    state: TaskState
    content: bytes


class TaskRepository:
    """Stores tasks for their agents; an agent cannot see tasks of another.

    Tasks exist for the time `kept` after their last change. A task that has not ended by its time limit counts as
    failed from that instant. With `push`, owners are notified of changes.
    """

    def __init__(
        self,
        store: SqlTaskStore,
        writer: GroupCommitWriter,
        clock: Callable[[], datetime],
        kept: timedelta,
        push: PushNotifications | None = None,
    ) -> None:
        self._store = store
        self._push = push
        self._writer = writer
        self._clock = clock
        self._kept = kept

    async def write(
        self,
        agent: str,
        content: TaskContent,
        version: int,
        time_left: timedelta | None = None,
        config: model.PushConfig | None = None,
    ) -> model.Task:
        """Store a task and return it once it is on disk: a new one if `version` is 0, else the next version.

        `time_left` is for a task that can still change; None means 5 minutes, or a day if it waits. `config`
        is the push configuration from this version on. Raises Conflict if the version is not the stored one;
        MethodNotFound if push notifications are off; Unavailable.
        """
        push = self._push if config is None else self.push

        def job(unit_of_work: UnitOfWork) -> model.Task:
            # Read here and not when the job is created: it may wait in the writer's queue, and the order of instants
            # must be that of the transactions.
            observed = self._observation_time()
            if push is not None and version:
                push.prepare_change(unit_of_work, agent, content.id, configures=config is not None)
            task = model.Task(content.id, content.context_id, content.state, content.content, version + 1, observed.now)
            settles_at = compute_settles_at(task, default_time_left(content.state) if time_left is None else time_left)
            store_task = self._store.replace if version else self._store.add
            if not store_task(unit_of_work, agent, task, settles_at, observed):
                raise save_conflict_error(content.id, version)
            # Nobody is notified of a new task without a configuration, as nearly all are.
            if push is not None and (version or config is not None):
                push.record_change(unit_of_work, agent, model.TaskRecord(task, settles_at), config, observed.now)
            return task

        return await self._writer.write(job)

    @property
    def reads_are_short(self) -> bool:
        """Whether reading a task only reads a file of this machine."""
        return self._store.is_local

    def get(self, agent: str, task_id: str) -> model.Task:
        """Return a task of the agent. Raises NotFound and QueryFailed."""
        task = self._store.get(agent, task_id, self._observation_time())
        if task is None:
            raise NotFound(f"there is no task {task_id}", metadata={"id": task_id})
        return task

    def find(self, agent: str, key: str) -> tuple[str, model.Task | None]:
        """Return the id that a key determines for an agent, and its task, or None if it does not exist.

        Raises QueryFailed.
        """
        task_id = derive_task_id(agent, key)
        return task_id, self._store.get(agent, task_id, self._observation_time())

    def require_new(self, agent: str, task_id: str) -> None:
        """Raise Conflict if the agent has a task with this id, and QueryFailed if that cannot be read."""
        if self._store.get(agent, task_id, self._observation_time()) is not None:
            raise save_conflict_error(task_id, 0)

    def page(self, conditions: model.TaskFilter, request: PageRequest) -> model.TaskPage:
        """Return the tasks that meet all conditions, last changed first; a page holds at most 100.

        Raises InvalidArgument if the page token is not one of this listing, and QueryFailed.
        """
        bounded = PageRequest(min(request.limit, MAX_PAGE), request.token)
        return self._store.page(conditions, bounded, self._observation_time())

    def remove_expired(self) -> bool:
        """Remove a batch of expired tasks and return whether more may have expired. Raises Unavailable."""
        removed = self._writer.run(
            lambda unit_of_work: self._store.remove_expired(unit_of_work, self._observation_time(), REMOVAL_BATCH)
        )
        # A full batch: more may wait, and the caller asks again at once.
        return removed == REMOVAL_BATCH

    @property
    def push(self) -> PushNotifications:
        """The push notifications. Raises MethodNotFound if they are off."""
        if self._push is None:
            raise MethodNotFound("push notifications are off here")
        return self._push

    def _observation_time(self) -> model.ObservationTime:
        return model.observation_time(self._clock, self._kept)


def default_time_left(state: TaskState) -> timedelta:
    return DEFAULT_INPUT_TIME if state in model.WAITING else DEFAULT_WORK_TIME


def compute_settles_at(task: model.Task, time_left: timedelta) -> datetime:
    """Return when a task settles: at once if it has ended, else when its time runs out."""
    if task.state not in model.STATE_AFTER_TIMEOUT:
        return task.updated_at
    return model.truncate_to_milliseconds(task.updated_at + time_left)


def save_conflict_error(task_id: str, version: int) -> Conflict:
    if version:
        return Conflict(f"The task {task_id} cannot change so in version {version}", metadata={"id": task_id})
    return Conflict(f"There is a task {task_id} already", metadata={"id": task_id})
