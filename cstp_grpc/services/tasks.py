"""Keeping the tasks of conversations for bridges."""

from __future__ import annotations

from datetime import timedelta

import grpc
from google.protobuf import duration_pb2

from cstp_grpc.gen.cstp.v1 import tasks_pb2, tasks_pb2_grpc
from cstp_grpc.services import convert
from cstp_grpc.services.caller import current_caller
from cstp_grpc.services.permissions import Permissions
from cstp_grpc.storage.paging import PageRequest
from cstp_grpc.tasks.keeper import TaskContent, TaskKeeper
from cstp_grpc.tasks.store import Task, TaskFilter
from cstp_grpc.vocabulary import TaskState

TASK_STATE = convert.EnumWords(tasks_pb2.TaskState, TaskState)


class TaskService(tasks_pb2_grpc.TaskServiceServicer):
    """Serves cstp.v1.TaskService."""

    def __init__(self, keeper: TaskKeeper, permissions: Permissions) -> None:
        self._keeper = keeper
        self._permissions = permissions

    def SaveTask(self, request: tasks_pb2.SaveTaskRequest, context: grpc.ServicerContext) -> tasks_pb2.SaveTaskResponse:
        """Keep a task, or another state of one."""
        caller = current_caller.get()
        self._permissions.require(request.method, caller.agent, caller.permissions)
        saved = self._keeper.save(caller.agent, task_content(request.task), request.version, time_left(request))
        return tasks_pb2.SaveTaskResponse(version=saved.version, updated_at=convert.timestamp(saved.updated_at))

    def GetTask(self, request: tasks_pb2.GetTaskRequest, context: grpc.ServicerContext) -> tasks_pb2.GetTaskResponse:
        """Read a task."""
        task = self._keeper.get(current_caller.get().agent, request.id)
        return tasks_pb2.GetTaskResponse(task=task_message(task))

    def ListTasks(
        self, request: tasks_pb2.ListTasksRequest, context: grpc.ServicerContext
    ) -> tasks_pb2.ListTasksResponse:
        """List tasks."""
        conditions = task_filter(request, current_caller.get().agent)
        page = self._keeper.page(conditions, PageRequest(request.page_size, request.page_token))
        return tasks_pb2.ListTasksResponse(
            tasks=[task_message(task) for task in page.items], next_page_token=page.next_token, total=page.total
        )


def task_content(message: tasks_pb2.Task) -> TaskContent:
    """Return what a bridge decides of a task."""
    return TaskContent(message.id, message.context_id, TASK_STATE.required(message.state), message.content)


def time_left(message: tasks_pb2.SaveTaskRequest) -> timedelta | None:
    """Return how long a task may be at work."""
    duration: duration_pb2.Duration | None = convert.optional(message, "time_left")
    return None if duration is None else duration.ToTimedelta()


def task_filter(message: tasks_pb2.ListTasksRequest, agent: str) -> TaskFilter:
    """Return the conditions of a listing of an agent's tasks."""
    return TaskFilter(
        agent=agent,
        context_id=convert.optional(message, "context_id"),
        states=TASK_STATE.words(message.states),
        updated_after=convert.instant(message, "updated_after"),
    )


def task_message(task: Task) -> tasks_pb2.Task:
    """Return a task as a message."""
    return tasks_pb2.Task(
        id=task.id,
        context_id=task.context_id,
        state=TASK_STATE.number(task.state),
        content=task.content,
        version=task.version,
        updated_at=convert.timestamp(task.updated_at),
    )
