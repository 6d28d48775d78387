"""Keeping the tasks of conversations for bridges."""

from __future__ import annotations

from datetime import timedelta

import grpc
from google.protobuf import duration_pb2

from cstp_grpc.gen.cstp.v1 import tasks_pb2, tasks_pb2_grpc
from cstp_grpc.services import convert
from cstp_grpc.services.caller import current_caller
from cstp_grpc.services.permissions import Permissions
from cstp_grpc.storage.blocking import WorkLane
from cstp_grpc.storage.paging import PageRequest
from cstp_grpc.tasks.keeper import TaskContent, TaskKeeper
from cstp_grpc.tasks.push_store import PushConfig
from cstp_grpc.tasks.store import Task, TaskFilter
from cstp_grpc.vocabulary import PushFormat, TaskState

PUSH_FORMAT = convert.EnumWords(tasks_pb2.PushFormat, PushFormat)
TASK_STATE = convert.EnumWords(tasks_pb2.TaskState, TaskState)


class TaskService(tasks_pb2_grpc.TaskServiceServicer):
    """Serves cstp.v1.TaskService. Tasks are read on `lane`."""

    def __init__(self, keeper: TaskKeeper, permissions: Permissions, lane: WorkLane) -> None:
        self._keeper = keeper
        self._permissions = permissions
        self._read = lane.run_short if keeper.reads_are_short else lane.run

    async def SaveTask(
        self, request: tasks_pb2.SaveTaskRequest, context: grpc.ServicerContext
    ) -> tasks_pb2.SaveTaskResponse:
        """Keep a task, or another state of one."""
        caller = current_caller.get()
        self._permissions.require(request.method, caller.agent, caller.permissions)
        config = push_config(request.push_config) if request.HasField("push_config") else None
        saved = await self._keeper.write(
            caller.agent, task_content(request.task), request.version, time_left(request), config
        )
        return tasks_pb2.SaveTaskResponse(version=saved.version, updated_at=convert.timestamp(saved.updated_at))

    async def FindTask(
        self, request: tasks_pb2.FindTaskRequest, context: grpc.ServicerContext
    ) -> tasks_pb2.FindTaskResponse:
        """Say which task a message begins."""
        task_id, task = await self._read(self._keeper.find, current_caller.get().agent, request.key)
        return tasks_pb2.FindTaskResponse(id=task_id, task=None if task is None else task_message(task))

    async def GetTask(
        self, request: tasks_pb2.GetTaskRequest, context: grpc.ServicerContext
    ) -> tasks_pb2.GetTaskResponse:
        """Read a task."""
        task = await self._read(self._keeper.get, current_caller.get().agent, request.id)
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

    def CreatePushConfig(
        self, request: tasks_pb2.CreatePushConfigRequest, context: grpc.ServicerContext
    ) -> tasks_pb2.CreatePushConfigResponse:
        """Have the caller notified of a task."""
        agent = current_caller.get().agent
        made = self._keeper.create_push_config(agent, request.task_id, push_config(request.push_config))
        return tasks_pb2.CreatePushConfigResponse(push_config=push_config_message(made))

    def GetPushConfig(
        self, request: tasks_pb2.GetPushConfigRequest, context: grpc.ServicerContext
    ) -> tasks_pb2.GetPushConfigResponse:
        """Read where the caller is notified of a task."""
        config = self._keeper.get_push_config(current_caller.get().agent, request.task_id, request.id or None)
        return tasks_pb2.GetPushConfigResponse(push_config=push_config_message(config))

    def ListPushConfigs(
        self, request: tasks_pb2.ListPushConfigsRequest, context: grpc.ServicerContext
    ) -> tasks_pb2.ListPushConfigsResponse:
        """List where the caller is notified of a task."""
        wanted = PageRequest(request.page_size, request.page_token)
        page = self._keeper.page_push_configs(current_caller.get().agent, request.task_id, wanted)
        return tasks_pb2.ListPushConfigsResponse(
            push_configs=map(push_config_message, page.items), next_page_token=page.next_token
        )

    def DeletePushConfig(
        self, request: tasks_pb2.DeletePushConfigRequest, context: grpc.ServicerContext
    ) -> tasks_pb2.DeletePushConfigResponse:
        """End notifications of a task at one address."""
        self._keeper.delete_push_config(current_caller.get().agent, request.task_id, request.id)
        return tasks_pb2.DeletePushConfigResponse()


def push_config(message: tasks_pb2.PushConfig) -> PushConfig:
    """Return a message as a configuration."""
    return PushConfig(
        id=message.id,
        format=PUSH_FORMAT.required(message.format),
        url=message.url,
        token=message.token,
        scheme=message.scheme,
        credentials=message.credentials,
    )


def push_config_message(config: PushConfig) -> tasks_pb2.PushConfig:
    """Return a configuration as a message."""
    return tasks_pb2.PushConfig(
        id=config.id,
        url=config.url,
        token=config.token,
        scheme=config.scheme,
        credentials=config.credentials,
        format=PUSH_FORMAT.number(config.format),
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
