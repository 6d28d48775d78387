"""The servicer that stores A2A tasks and push configurations for bridges."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

import grpc

from cstp_grpc.contract import proto_values
from cstp_grpc.contract.caller import current_caller
from cstp_grpc.contract.enums import Permission
from cstp_grpc.contract.message_mapping import MessageMapper
from cstp_grpc.contract.methods import missing_permission_error
from cstp_grpc.gen.cstp.v1 import tasks_pb2 as pb2
from cstp_grpc.gen.cstp.v1 import tasks_pb2_grpc as pb2_grpc
from cstp_grpc.modules.tasks.model import PushConfig, Task, TaskFilter
from cstp_grpc.modules.tasks.repository import TaskContent, TaskRepository
from cstp_grpc.platform.storage.background_work import WorkPool
from cstp_grpc.platform.storage.pagination import PageRequest

TASK = MessageMapper(Task, pb2.Task)
TASK_CONTENT = MessageMapper(TaskContent, pb2.Task)
TASK_FILTER = MessageMapper(TaskFilter, pb2.ListTasksRequest, given=("agent",))
PUSH_CONFIG = MessageMapper(PushConfig, pb2.PushConfig)


class TaskService(pb2_grpc.TaskServiceServicer):
    """Serves cstp.v1.TaskService. Tasks are read on `pool`.

    `required` has the permissions that the methods behind tasks require, by name.
    """

    def __init__(
        self, repository: TaskRepository, required: Mapping[str, tuple[Permission, ...]], pool: WorkPool
    ) -> None:
        self._repository = repository
        self._required = required
        # SQLite answers within microseconds on the calling thread; PostgreSQL is waited for on a thread of the pool.
        self._read = pool.run_short if repository.reads_are_short else pool.run

    async def require_new_task(self, agent: str, task_id: str) -> None:
        """Raise Conflict if the agent has a task with this id."""
        if self._repository.reads_are_short:
            # Without a turn of its own: it is part of a call that takes many times as long.
            self._repository.require_new(agent, task_id)
        else:
            await self._read(self._repository.require_new, agent, task_id)

    async def SaveTask(self, request: pb2.SaveTaskRequest, context: grpc.ServicerContext) -> pb2.SaveTaskResponse:
        """Store a task, or a new state of one."""
        caller = current_caller.get()
        needed = self._required.get(request.method)
        # Checked when the task is stored, before its method is called: a task that can only fail is not begun.
        if needed and caller.permissions.isdisjoint(needed):
            raise missing_permission_error(request.method, caller.agent, *needed)
        config = PUSH_CONFIG.decode(request.push_config) if request.HasField("push_config") else None
        saved = await self._repository.write(
            caller.agent, TASK_CONTENT.decode(request.task), request.version, read_time_left(request), config
        )
        return pb2.SaveTaskResponse(version=saved.version, updated_at=proto_values.timestamp_message(saved.updated_at))

    async def FindTask(self, request: pb2.FindTaskRequest, context: grpc.ServicerContext) -> pb2.FindTaskResponse:
        agent = current_caller.get().agent
        task_id, task = await self._read(self._repository.find, agent, request.key)
        return pb2.FindTaskResponse(id=task_id, task=None if task is None else TASK.encode(task), agent=agent)

    async def GetTask(self, request: pb2.GetTaskRequest, context: grpc.ServicerContext) -> pb2.GetTaskResponse:
        task = await self._read(self._repository.get, current_caller.get().agent, request.id)
        return pb2.GetTaskResponse(task=TASK.encode(task))

    def ListTasks(self, request: pb2.ListTasksRequest, context: grpc.ServicerContext) -> pb2.ListTasksResponse:
        conditions = TASK_FILTER.decode(request, agent=current_caller.get().agent)
        page = self._repository.page(conditions, PageRequest(request.page_size, request.page_token))
        return pb2.ListTasksResponse(
            tasks=map(TASK.encode, page.items), next_page_token=page.next_token, total=page.total
        )

    def CreatePushConfig(
        self, request: pb2.CreatePushConfigRequest, context: grpc.ServicerContext
    ) -> pb2.CreatePushConfigResponse:
        agent = current_caller.get().agent
        config = self._repository.push.create(agent, request.task_id, PUSH_CONFIG.decode(request.push_config))
        return pb2.CreatePushConfigResponse(push_config=PUSH_CONFIG.encode(config))

    def GetPushConfig(
        self, request: pb2.GetPushConfigRequest, context: grpc.ServicerContext
    ) -> pb2.GetPushConfigResponse:
        config = self._repository.push.get(current_caller.get().agent, request.task_id, request.id or None)
        return pb2.GetPushConfigResponse(push_config=PUSH_CONFIG.encode(config))

    def ListPushConfigs(
        self, request: pb2.ListPushConfigsRequest, context: grpc.ServicerContext
    ) -> pb2.ListPushConfigsResponse:
        page_request = PageRequest(request.page_size, request.page_token)
        page = self._repository.push.page(current_caller.get().agent, request.task_id, page_request)
        return pb2.ListPushConfigsResponse(
            push_configs=map(PUSH_CONFIG.encode, page.items), next_page_token=page.next_token
        )

    def DeletePushConfig(
        self, request: pb2.DeletePushConfigRequest, context: grpc.ServicerContext
    ) -> pb2.DeletePushConfigResponse:
        self._repository.push.delete(current_caller.get().agent, request.task_id, request.id)
        return pb2.DeletePushConfigResponse()


def read_time_left(message: pb2.SaveTaskRequest) -> timedelta | None:
    return message.time_left.ToTimedelta() if message.HasField("time_left") else None
