"""The tasks of A2A, which the gRPC server stores for their owners, and their events."""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Awaitable, Callable, Iterator
from typing import Final, TypeVar

import grpc
from a2a.types.a2a_pb2 import Task, TaskArtifactUpdateEvent, TaskState, TaskStatusUpdateEvent
from a2a.utils.errors import TaskNotFoundError
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from bridge.a2a.errors import INLINE_CONFIG_PATH, UpstreamError, invalid_params, push_error
from bridge.call_errors import visible_rpc_error
from bridge.http_request import AUTHORIZATION
from bridge.upstream import Metadata
from cstp_grpc.common.lazy_dataclass import dataclass
from cstp_grpc.contract import a2a_tasks
from cstp_grpc.contract.call_origin import CERTIFICATE_METADATA_KEY
from cstp_grpc.contract.errors import CstpError
from cstp_grpc.contract.task_ids import derive_task_id
from cstp_grpc.gen.cstp.v1 import tasks_pb2
from cstp_grpc.gen.cstp.v1.tasks_pb2_grpc import TaskServiceStub

logger = logging.getLogger(__name__)

TaskEvent = Task | TaskStatusUpdateEvent | TaskArtifactUpdateEvent
"""An event of a task's stream."""
WAITING_STATES: Final = frozenset({TaskState.TASK_STATE_INPUT_REQUIRED, TaskState.TASK_STATE_AUTH_REQUIRED})
"""The states of a task that waits for its owner or for an approval; one about an intent takes further messages."""
CANCELABLE_STATES: Final = WAITING_STATES | {TaskState.TASK_STATE_SUBMITTED}
"""The states in which the server allows a task to be canceled: its method was not called, or was blocked."""
OPEN_STATES: Final = CANCELABLE_STATES | {TaskState.TASK_STATE_WORKING}
"""The states of tasks that have not ended."""


def final_events(task: Task) -> Iterator[TaskArtifactUpdateEvent | TaskStatusUpdateEvent]:
    for artifact in task.artifacts:
        yield TaskArtifactUpdateEvent(task_id=task.id, context_id=task.context_id, artifact=artifact, last_chunk=True)
    yield status_event(task)


def status_event(task: Task) -> TaskStatusUpdateEvent:
    return TaskStatusUpdateEvent(task_id=task.id, context_id=task.context_id, status=task.status)


def has_ended(task: Task) -> bool:
    return task.status.state not in OPEN_STATES


def is_idle(task: Task) -> bool:
    """Return whether a task has ended or waits, so that nothing is running for it."""
    return has_ended(task) or task.status.state in WAITING_STATES


def with_state(task: Task, state: TaskState) -> Task:
    """Return a copy of the task in another state, without a status message."""
    changed = copy_task(task)
    changed.status.Clear()
    changed.status.state = state
    return changed


def state_name(task: Task) -> str:
    return TaskState.Name(task.status.state)


def copy_task(task: Task) -> Task:
    copy = Task()
    copy.CopyFrom(task)
    return copy


ResponseT = TypeVar("ResponseT", bound=Message)

SERVER_STATES: Final = {
    TaskState.TASK_STATE_SUBMITTED: tasks_pb2.TASK_STATE_SUBMITTED,
    TaskState.TASK_STATE_INPUT_REQUIRED: tasks_pb2.TASK_STATE_INPUT_REQUIRED,
    TaskState.TASK_STATE_AUTH_REQUIRED: tasks_pb2.TASK_STATE_AUTH_REQUIRED,
    TaskState.TASK_STATE_WORKING: tasks_pb2.TASK_STATE_WORKING,
    TaskState.TASK_STATE_COMPLETED: tasks_pb2.TASK_STATE_COMPLETED,
    TaskState.TASK_STATE_REJECTED: tasks_pb2.TASK_STATE_REJECTED,
    TaskState.TASK_STATE_FAILED: tasks_pb2.TASK_STATE_FAILED,
    TaskState.TASK_STATE_CANCELED: tasks_pb2.TASK_STATE_CANCELED,
}
"""The states that tasks here can have, as the server calls them; A2A knows some more."""
A2A_STATES: Final = {kept: state for state, kept in SERVER_STATES.items()}

MAX_TASK_BYTES: Final = 2_097_152
"""Maximum size of a stored task, as the contract limits it."""

CREDENTIAL_KEYS: Final = (AUTHORIZATION, CERTIFICATE_METADATA_KEY)
"""The metadata that identify a caller."""
MAX_KNOWN_AGENTS: Final = 4096
"""Credentials whose agents are remembered. Chosen: a few hundred bytes each; others cost a call of the server."""

LIMITED_CALLS: Final = re.compile(r"calls of cstp\.\w+")
"""The name of a method in the server's message about a rate limit."""
A2A_FIELD_NAMES: Final = {"updatedAfter": "statusTimestampAfter"}
"""A2A's names of listing fields that the server names differently."""


class TaskVersionConflict(Exception):
    """The stored version of a task is not the expected one, or the state change is not allowed."""


@dataclass(frozen=True, slots=True)
class StoredTask:
    """A task and its stored version."""

    task: Task
    version: int


@dataclass(frozen=True, slots=True)
class TaskQuery:
    """The conditions of a listing of tasks, last changed first."""

    page_size: int
    """1 to 100."""
    page_token: str = ""
    context_id: str = ""
    """Empty means any."""
    state: TaskState | None = None
    """One of STATES; None means any."""
    updated_after: Timestamp | None = None


@dataclass(frozen=True, slots=True)
class A2aTaskPage:
    """A page of tasks."""

    tasks: list[Task]
    next_page_token: str
    """Empty on the last page."""
    total: int
    """How many there are on all pages."""


class GrpcTaskStore:
    """Stores tasks at the gRPC server, which shows a caller only its own.

    `timeout` is in seconds, for each call. Every method raises UpstreamError if the server refuses the call.
    """

    def __init__(self, channel: grpc.aio.Channel, timeout: float) -> None:
        self._service = TaskServiceStub(channel)
        self._timeout = timeout
        self._agents: dict[bytes, str] = {}
        """The agents of callers, by digests of their credentials. Only ids depend on them, and no permission."""

    async def save(
        self,
        task: Task,
        version: int,
        metadata: Metadata,
        time_left: float | None = None,
        method: str = "",
        push_config: tasks_pb2.PushConfig | None = None,
    ) -> StoredTask:
        """Store a task and return it as stored; version 0 creates it.

        `time_left` is how many seconds an unfinished task has until it counts as failed; `method` is the method that
        will be called for it, for which the server checks the caller's permission. Raises TaskVersionConflict, and with
        a push configuration the errors of `push_error`.
        """
        # A copy, because the caller's task is the one that it sends next, if this attempt fails.
        content = copy_task(task)
        # The server sets the time of a change, and returns it.
        content.status.ClearField("timestamp")
        request = tasks_pb2.SaveTaskRequest(
            task=tasks_pb2.Task(
                id=task.id,
                context_id=task.context_id,
                state=SERVER_STATES[task.status.state],
                content=content.SerializeToString(),
            ),
            version=version,
            time_left=None if time_left is None else to_duration(time_left),
            method=method,
            push_config=push_config,
        )
        try:
            saved = await invoke_rpc(self._service.SaveTask, request, metadata, self._timeout)
        except CstpError as failure:
            # Before the errors of push configurations: a lost race for the version is not the fault of the
            # configuration.
            if failure.reason == "CONFLICT":
                raise TaskVersionConflict(task.id) from failure
            if push_config is not None:
                raise push_error(failure, INLINE_CONFIG_PATH) from failure
            raise UpstreamError(failure) from failure
        content.status.timestamp.CopyFrom(saved.updated_at)
        # The content is what was sent, with the server's time: reading it back would cost another call.
        return StoredTask(content, saved.version)

    async def get(self, task_id: str, metadata: Metadata) -> StoredTask:
        """Return a task of the caller. Raises TaskNotFoundError."""
        request = tasks_pb2.GetTaskRequest(id=task_id)
        try:
            kept = (await invoke_rpc(self._service.GetTask, request, metadata, self._timeout)).task
        except CstpError as failure:
            # A malformed id is reported like a missing task, as A2A has no other error for it.
            if failure.reason in ("NOT_FOUND", "INVALID_ARGUMENT"):
                raise TaskNotFoundError from failure
            raise UpstreamError(failure) from failure
        task = read_task(kept)
        if task is None:
            raise TaskNotFoundError
        return StoredTask(task, kept.version)

    async def find(self, key: str, metadata: Metadata) -> tuple[str, StoredTask | None]:
        """Return the id of the task that a message begins, and the task if it is stored."""
        request = tasks_pb2.FindTaskRequest(key=key)
        try:
            found = await invoke_rpc(self._service.FindTask, request, metadata, self._timeout)
        except CstpError as failure:
            raise UpstreamError(failure) from failure
        if found.agent:
            if len(self._agents) >= MAX_KNOWN_AGENTS:
                self._agents.clear()
            self._agents[credentials_digest(metadata)] = found.agent
        task = read_task(found.task) if found.HasField("task") else None
        return found.id, None if task is None else StoredTask(task, found.task.version)

    def derive_id(self, key: str, metadata: Metadata) -> str | None:
        """Return the id of the task that a message begins, or None if `find` was not called for its sender yet."""
        agent = self._agents.get(credentials_digest(metadata))
        return None if agent is None else derive_task_id(agent, key)

    async def list(self, query: TaskQuery, metadata: Metadata) -> A2aTaskPage:
        """Return a page of the caller's tasks. Raises InvalidParamsError, for instance for an invalid page token."""
        request = tasks_pb2.ListTasksRequest(
            context_id=query.context_id or None,
            states=[] if query.state is None else [SERVER_STATES[query.state]],
            updated_after=query.updated_after,
            page_size=query.page_size,
            page_token=query.page_token,
        )
        try:
            page = await invoke_rpc(self._service.ListTasks, request, metadata, self._timeout)
        except CstpError as failure:
            if failure.reason == "INVALID_ARGUMENT":
                named = [
                    each._replace(field=A2A_FIELD_NAMES.get(each.field, each.field)) for each in failure.violations
                ]
                raise invalid_params(failure.message, *named) from failure
            raise UpstreamError(failure) from failure
        tasks = [task for task in map(read_task, page.tasks) if task is not None]
        return A2aTaskPage(tasks, page.next_page_token, page.total)


async def invoke_rpc(
    rpc: Callable[..., Awaitable[ResponseT]], request: Message, metadata: Metadata, timeout: float
) -> ResponseT:
    """Call an rpc of the server's and return the response. Raises CstpError."""
    try:
        return await rpc(request, timeout=timeout, metadata=tuple(metadata))
    except grpc.aio.AioRpcError as error:
        failure = visible_rpc_error(error, type(request))
        # A2A callers do not know the names of the server's methods.
        failure.message = LIMITED_CALLS.sub("operations on tasks", failure.message)
        raise failure from error


def credentials_digest(metadata: Metadata) -> bytes:
    return hashlib.sha256(repr([each for each in metadata if each[0] in CREDENTIAL_KEYS]).encode()).digest()


def read_task(kept: tasks_pb2.Task) -> Task | None:
    """Decode a stored task, with the state and time that the server reports.

    Returns None if the content is not such a task: any token holder may store what it likes.
    """
    task = a2a_tasks.decode_stored_task(kept.id, kept.context_id, kept.content, A2A_STATES[kept.state], kept.updated_at)
    if task is None:
        logger.warning("task %s holds what no bridge kept", kept.id)
    return task


def to_duration(seconds: float) -> Duration:
    length = Duration()
    length.FromMilliseconds(round(seconds * 1000))
    return length
