"""The tasks of conversations, which the gRPC server keeps for their owners."""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Final, TypeVar

import grpc
from a2a.types.a2a_pb2 import Task, TaskState
from a2a.utils.errors import TaskNotFoundError
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from bridge.a2a.errors import Refused, invalid_params
from bridge.a2a.push_errors import INLINE, push_error
from bridge.a2a.tasks import copy_of
from bridge.methods import Metadata
from bridge.status import Failure, failure_from_rpc
from cstp_grpc.client import a2a_tasks
from cstp_grpc.gen.cstp.v1 import tasks_pb2
from cstp_grpc.gen.cstp.v1.tasks_pb2_grpc import TaskServiceStub

logger = logging.getLogger(__name__)

ResponseT = TypeVar("ResponseT", bound=Message)

STATES: Final = {
    TaskState.TASK_STATE_SUBMITTED: tasks_pb2.TASK_STATE_SUBMITTED,
    TaskState.TASK_STATE_INPUT_REQUIRED: tasks_pb2.TASK_STATE_INPUT_REQUIRED,
    TaskState.TASK_STATE_WORKING: tasks_pb2.TASK_STATE_WORKING,
    TaskState.TASK_STATE_COMPLETED: tasks_pb2.TASK_STATE_COMPLETED,
    TaskState.TASK_STATE_REJECTED: tasks_pb2.TASK_STATE_REJECTED,
    TaskState.TASK_STATE_FAILED: tasks_pb2.TASK_STATE_FAILED,
    TaskState.TASK_STATE_CANCELED: tasks_pb2.TASK_STATE_CANCELED,
}
"""The states that tasks here can have, as the server calls them; A2A knows some more."""
KEPT: Final = {kept: state for state, kept in STATES.items()}

MAX_BYTES: Final = 2_097_152
"""The largest task that the server keeps."""

CALLS: Final = re.compile(r"calls of cstp\.\w+")
"""How a limit names the calls that there are too many of."""
NAMES: Final = {"updatedAfter": "statusTimestampAfter"}
"""Fields of a listing that A2A calls otherwise than the server does."""


class TaskConflict(Exception):
    """A task is no longer in the version that was to be replaced, or may not change as it should."""


@dataclass(frozen=True, slots=True)
class StoredTask:
    """A task and the version that it is kept in."""

    task: Task
    version: int


@dataclass(frozen=True, slots=True)
class TaskQuery:
    """Which tasks to list, last changed first."""

    page_size: int
    """1 to 100."""
    page_token: str = ""
    context_id: str = ""
    """Empty means any."""
    state: TaskState | None = None
    """One of STATES; None means any."""
    updated_after: Timestamp | None = None


@dataclass(frozen=True, slots=True)
class TaskPage:
    """Some of the tasks that a listing asks for."""

    tasks: list[Task]
    next_page_token: str
    """Empty on the last page."""
    total: int
    """How many there are on all pages."""


class TaskStore:
    """Keeps tasks with the gRPC server, which shows a caller none but its own.

    `timeout` is in seconds, for each call. Every method raises Refused where the server refuses.
    """

    def __init__(self, channel: grpc.aio.Channel, timeout: float) -> None:
        self._service = TaskServiceStub(channel)
        self._timeout = timeout

    async def save(
        self,
        task: Task,
        version: int,
        metadata: Metadata,
        time_left: float | None = None,
        method: str = "",
        push_config: tasks_pb2.PushConfig | None = None,
    ) -> StoredTask:
        """Keep a task and return it as it is kept; version 0 makes it a new one.

        `time_left` is how many seconds a task that has not ended has before it counts as failed; `method` is what will
        be called for it, which the server lets its caller call or refuses to keep the task. Raises TaskConflict, and
        with a push configuration what `push_error` returns.
        """
        content = copy_of(task)
        content.status.ClearField("timestamp")
        request = tasks_pb2.SaveTaskRequest(
            task=tasks_pb2.Task(
                id=task.id,
                context_id=task.context_id,
                state=STATES[task.status.state],
                content=content.SerializeToString(),
            ),
            version=version,
            time_left=None if time_left is None else duration(time_left),
            method=method,
            push_config=push_config,
        )
        call = self._service.SaveTask(request, timeout=self._timeout, metadata=tuple(metadata))
        try:
            saved = await answer_of(call, tasks_pb2.SaveTaskRequest)
        except Failure as failure:
            if failure.reason == "CONFLICT":
                raise TaskConflict(task.id) from failure
            if push_config is not None:
                raise push_error(failure, INLINE) from failure
            raise Refused(failure) from failure
        content.status.timestamp.CopyFrom(saved.updated_at)
        return StoredTask(content, saved.version)

    async def get(self, task_id: str, metadata: Metadata) -> StoredTask:
        """Return a task of the caller's. Raises TaskNotFoundError."""
        request = tasks_pb2.GetTaskRequest(id=task_id)
        call = self._service.GetTask(request, timeout=self._timeout, metadata=tuple(metadata))
        try:
            kept = (await answer_of(call, tasks_pb2.GetTaskRequest)).task
        except Failure as failure:
            # An id that cannot be one is the id of no task.
            if failure.reason in ("NOT_FOUND", "INVALID_ARGUMENT"):
                raise TaskNotFoundError from failure
            raise Refused(failure) from failure
        task = read_task(kept)
        if task is None:
            raise TaskNotFoundError
        return StoredTask(task, kept.version)

    async def find(self, key: str, metadata: Metadata) -> tuple[str, StoredTask | None]:
        """Return the id of the task that a message begins, which the key tells apart, and the task if it is kept."""
        request = tasks_pb2.FindTaskRequest(key=key)
        call = self._service.FindTask(request, timeout=self._timeout, metadata=tuple(metadata))
        try:
            found = await answer_of(call, tasks_pb2.FindTaskRequest)
        except Failure as failure:
            raise Refused(failure) from failure
        task = read_task(found.task) if found.HasField("task") else None
        return found.id, None if task is None else StoredTask(task, found.task.version)

    async def list(self, query: TaskQuery, metadata: Metadata) -> TaskPage:
        """Return a page of the caller's tasks. Raises InvalidParamsError, for instance for a token that is none."""
        request = tasks_pb2.ListTasksRequest(
            context_id=query.context_id or None,
            states=[] if query.state is None else [STATES[query.state]],
            updated_after=query.updated_after,
            page_size=query.page_size,
            page_token=query.page_token,
        )
        call = self._service.ListTasks(request, timeout=self._timeout, metadata=tuple(metadata))
        try:
            page = await answer_of(call, tasks_pb2.ListTasksRequest)
        except Failure as failure:
            if failure.reason == "INVALID_ARGUMENT":
                raise invalid_params(failure.message, *wrong_fields(failure)) from failure
            raise Refused(failure) from failure
        tasks = [task for task in map(read_task, page.tasks) if task is not None]
        return TaskPage(tasks, page.next_page_token, page.total)


async def answer_of(call: Awaitable[ResponseT], request: type[Message]) -> ResponseT:
    """Return what a call answers. Raises Failure."""
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        raise reworded(failure_from_rpc(error, request)) from error


def reworded(failure: Failure) -> Failure:
    """Return a failure without the name of the method that was called, which no caller of A2A's has heard of."""
    message = CALLS.sub("operations on tasks", failure.message)
    return Failure(failure.reason, message, codes=failure.codes, details=failure.details)


def read_task(kept: tasks_pb2.Task) -> Task | None:
    """Return a task as A2A shows it; where it stands, and since when, the server knows better than its content.

    It is None where the content is no such task: whoever has a token may save what it likes past every bridge.
    """
    task = a2a_tasks.read_task(kept.id, kept.context_id, kept.content, KEPT[kept.state], kept.updated_at)
    if task is None:
        logger.warning("task %s holds what no bridge kept", kept.id)
    return task


def wrong_fields(failure: Failure) -> list[tuple[str, str]]:
    """Return the fields that the server names as wrong, by their names in A2A, and what is wrong with each."""
    return [(NAMES.get(field, field), description) for field, description in failure.wrong_fields]


def duration(seconds: float) -> Duration:
    """Return a length of time as a message."""
    length = Duration()
    length.FromMilliseconds(round(seconds * 1000))
    return length
