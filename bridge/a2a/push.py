"""The operations on push notifications, over configurations that the gRPC server keeps."""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from typing import Final

import grpc
from a2a.types.a2a_pb2 import (
    DeleteTaskPushNotificationConfigRequest,
    GetTaskPushNotificationConfigRequest,
    ListTaskPushNotificationConfigsRequest,
    ListTaskPushNotificationConfigsResponse,
    SendMessageRequest,
    TaskPushNotificationConfig,
)
from a2a.utils.errors import PushNotificationNotSupportedError
from google.protobuf.message import Message

from bridge.a2a import params as json_params
from bridge.a2a import shape
from bridge.a2a.context import V0_3, V1_0, CallContext, metadata_of, version_in
from bridge.a2a.push_errors import INLINE, push_error
from bridge.a2a.store import answer_of
from bridge.methods import Metadata
from bridge.status import Failure
from cstp_grpc.gen.cstp.v1 import tasks_pb2
from cstp_grpc.gen.cstp.v1.tasks_pb2_grpc import TaskServiceStub

FORMATS: Final = {V1_0: tasks_pb2.PUSH_FORMAT_A2A_1_0, V0_3: tasks_pb2.PUSH_FORMAT_A2A_0_3}


class PushService:
    """Keeps push configurations with the gRPC server. `timeout` is in seconds, for each call.

    Every method raises TaskNotFoundError, PushNotificationNotSupportedError, InvalidParamsError and Refused.
    """

    def __init__(self, channel: grpc.aio.Channel, timeout: float) -> None:
        self._service = TaskServiceStub(channel)
        self._timeout = timeout

    async def create(
        self, task_id: str, config: tasks_pb2.PushConfig, metadata: Metadata, place: str = ""
    ) -> tasks_pb2.PushConfig:
        """Keep a configuration of a task and return it as it is kept; the request holds it at `place`."""
        request = tasks_pb2.CreatePushConfigRequest(task_id=task_id, push_config=config)
        call = self._service.CreatePushConfig(request, timeout=self._timeout, metadata=tuple(metadata))
        try:
            return (await answer_of(call, tasks_pb2.CreatePushConfigRequest)).push_config
        except Failure as failure:
            raise push_error(failure, place) from failure

    async def get(self, task_id: str, config_id: str, metadata: Metadata) -> tasks_pb2.PushConfig:
        """Return a configuration of a task, the one that was set last if the id is empty."""
        request = tasks_pb2.GetPushConfigRequest(task_id=task_id, id=config_id)
        call = self._service.GetPushConfig(request, timeout=self._timeout, metadata=tuple(metadata))
        try:
            return (await answer_of(call, tasks_pb2.GetPushConfigRequest)).push_config
        except Failure as failure:
            raise push_error(failure) from failure

    async def list(
        self, task_id: str, page_size: int, page_token: str, metadata: Metadata
    ) -> tasks_pb2.ListPushConfigsResponse:
        """Return a page of the configurations of a task."""
        request = tasks_pb2.ListPushConfigsRequest(task_id=task_id, page_size=page_size, page_token=page_token)
        call = self._service.ListPushConfigs(request, timeout=self._timeout, metadata=tuple(metadata))
        try:
            return await answer_of(call, tasks_pb2.ListPushConfigsRequest)
        except Failure as failure:
            raise push_error(failure) from failure

    async def delete(self, task_id: str, config_id: str, metadata: Metadata) -> None:
        """Remove a configuration of a task, if it exists."""
        request = tasks_pb2.DeletePushConfigRequest(task_id=task_id, id=config_id)
        call = self._service.DeletePushConfig(request, timeout=self._timeout, metadata=tuple(metadata))
        try:
            await answer_of(call, tasks_pb2.DeletePushConfigRequest)
        except Failure as failure:
            raise push_error(failure) from failure


class PushOperations(ABC):
    """Answers whatever is about push notifications; without a service it is refused."""

    def __init__(self, push: PushService | None) -> None:
        self._push = push

    @abstractmethod
    async def admit(self, context: CallContext, params: Message) -> None:
        """Refuse callers that may not ask for anything. Raises A2AError."""

    def inline_config(self, params: SendMessageRequest, context: CallContext) -> tasks_pb2.PushConfig | None:
        """Return the configuration that comes with a message, None if none does. Raises A2AError."""
        configuration = params.configuration
        if not configuration.HasField("task_push_notification_config"):
            return None
        if self._push is None:
            raise PushNotificationNotSupportedError
        given = configuration.task_push_notification_config
        if given.task_id not in ("", params.message.task_id):
            raise json_params.refused([(f"{INLINE}.taskId", "must be empty in a message")])
        return to_kept(given, context)

    async def add_inline_config(
        self, task_id: str, message_id: str, config: tasks_pb2.PushConfig, metadata: Metadata
    ) -> None:
        """Keep the configuration that a repeated message brings, unless its task has it already. Raises A2AError."""
        push = self._required_push()
        kept = (await push.list(task_id, 0, "", metadata)).push_configs
        if any(is_same_config(config, each) for each in kept):
            return
        if not config.id and config.format == tasks_pb2.PUSH_FORMAT_A2A_1_0:
            # Repetitions at the same time must not add it several times.
            config = named_config(config, str(uuid.uuid5(uuid.NAMESPACE_OID, message_id)))
        await push.create(task_id, config, metadata, INLINE)

    async def on_create_task_push_notification_config(
        self, params: TaskPushNotificationConfig, context: CallContext
    ) -> TaskPushNotificationConfig:
        """Have the caller notified of one of its tasks, and return the configuration with its id."""
        await self.admit(context, params)
        push = self._required_push()
        shape.check(params)
        if not params.task_id:
            raise json_params.refused([("task_id", "is required")])
        kept = await push.create(params.task_id, to_kept(params, context), metadata_of(context))
        return to_shown(params.task_id, kept)

    async def on_get_task_push_notification_config(
        self, params: GetTaskPushNotificationConfigRequest, context: CallContext
    ) -> TaskPushNotificationConfig:
        """Return a configuration of a task; a request of 0.3 may leave out which."""
        await self.admit(context, params)
        push = self._required_push()
        if version_in(context) != V0_3:
            shape.check(params)
        return to_shown(params.task_id, await push.get(params.task_id, params.id, metadata_of(context)))

    async def on_list_task_push_notification_configs(
        self, params: ListTaskPushNotificationConfigsRequest, context: CallContext
    ) -> ListTaskPushNotificationConfigsResponse:
        """Return a page of the configurations of a task."""
        await self.admit(context, params)
        push = self._required_push()
        shape.check(params)
        page = await push.list(params.task_id, params.page_size, params.page_token, metadata_of(context))
        return ListTaskPushNotificationConfigsResponse(
            configs=[to_shown(params.task_id, each) for each in page.push_configs],
            next_page_token=page.next_page_token,
        )

    async def on_delete_task_push_notification_config(
        self, params: DeleteTaskPushNotificationConfigRequest, context: CallContext
    ) -> None:
        """Remove a configuration of a task, if it exists."""
        await self.admit(context, params)
        push = self._required_push()
        shape.check(params)
        await push.delete(params.task_id, params.id, metadata_of(context))

    def _required_push(self) -> PushService:
        if self._push is None:
            raise PushNotificationNotSupportedError
        return self._push


def to_kept(config: TaskPushNotificationConfig, context: CallContext) -> tasks_pb2.PushConfig:
    """Return a configuration as the server keeps it; notifications are of the version that the request is of."""
    return tasks_pb2.PushConfig(
        id=config.id,
        url=config.url,
        token=config.token,
        scheme=config.authentication.scheme,
        credentials=config.authentication.credentials,
        format=FORMATS[version_in(context)],
    )


def is_same_config(config: tasks_pb2.PushConfig, kept: tasks_pb2.PushConfig) -> bool:
    """Return whether a kept configuration is the one that was given, perhaps without an id."""
    return named_config(config, config.id or kept.id) == kept


def named_config(config: tasks_pb2.PushConfig, config_id: str) -> tasks_pb2.PushConfig:
    """Return a configuration with an id."""
    named = tasks_pb2.PushConfig()
    named.CopyFrom(config)
    named.id = config_id
    return named


def to_shown(task_id: str, kept: tasks_pb2.PushConfig) -> TaskPushNotificationConfig:
    """Return a kept configuration as A2A shows it."""
    shown = TaskPushNotificationConfig(task_id=task_id, id=kept.id, url=kept.url, token=kept.token)
    if kept.scheme:
        shown.authentication.scheme = kept.scheme
        shown.authentication.credentials = kept.credentials
    return shown
