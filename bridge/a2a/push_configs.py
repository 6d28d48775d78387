"""The operations on push configurations of tasks, which the gRPC server stores."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable
from typing import Any, Final

import grpc
from a2a.types import a2a_pb2
from a2a.utils.errors import PushNotificationNotSupportedError
from google.protobuf.message import Message

from bridge.a2a.call_context import V0_3, V1_0, A2aCallContext, parse_version
from bridge.a2a.errors import INLINE_CONFIG_PATH, push_error, violations_error
from bridge.a2a.message_parsing import check_required_fields
from bridge.a2a.task_store import invoke_rpc
from bridge.upstream import Metadata
from cstp_grpc.contract.errors import CstpError, FieldViolation
from cstp_grpc.gen.cstp.v1 import tasks_pb2
from cstp_grpc.gen.cstp.v1.tasks_pb2_grpc import TaskServiceStub

PUSH_FORMATS: Final = {V1_0: tasks_pb2.PUSH_FORMAT_A2A_1_0, V0_3: tasks_pb2.PUSH_FORMAT_A2A_0_3}


class PushConfigOperations:
    """Handles the operations on push configurations; without a channel to the server they are refused.

    `timeout` is in seconds, for each call of the server; `check_access` raises A2AError if the caller may not make a
    call.
    """

    def __init__(
        self,
        channel: grpc.aio.Channel | None,
        timeout: float,
        check_access: Callable[[A2aCallContext, Message], Awaitable[None]],
    ) -> None:
        self._service = None if channel is None else TaskServiceStub(channel)
        self._timeout = timeout
        self._check_access = check_access

    def read_inline_config(self, params: a2a_pb2.SendMessageRequest, context: A2aCallContext) -> tasks_pb2.PushConfig:
        """Return the push configuration in a message that has one. Raises A2AError."""
        self._required_service()
        given = params.configuration.task_push_notification_config
        # A message that starts a task cannot know the task's id; one that continues it may repeat that.
        if given.task_id not in ("", params.message.task_id):
            raise violations_error([FieldViolation(f"{INLINE_CONFIG_PATH}.taskId", "must be empty in a message")])
        return to_stored_config(given, context)

    async def add_inline_config(
        self, task_id: str, message_id: str, config: tasks_pb2.PushConfig, metadata: Metadata
    ) -> None:
        """Store the configuration of a repeated message, unless its task has it. Raises A2AError."""
        # Page size 0 means all, of which a task has ten at the most.
        kept = await self._call("ListPushConfigs", tasks_pb2.ListPushConfigsRequest(task_id=task_id), metadata)
        # A stored configuration has an id, which the given one may lack.
        if any(with_config_id(config, config.id or each.id) == each for each in kept.push_configs):
            return
        if not config.id and config.format == tasks_pb2.PUSH_FORMAT_A2A_1_0:
            # An id derived from the message: two repetitions at the same time both pass the check above, and then store
            # the same configuration once.
            config = with_config_id(config, str(uuid.uuid5(uuid.NAMESPACE_OID, message_id)))
        request = tasks_pb2.CreatePushConfigRequest(task_id=task_id, push_config=config)
        await self._call("CreatePushConfig", request, metadata, INLINE_CONFIG_PATH)

    async def create(
        self, params: a2a_pb2.TaskPushNotificationConfig, context: A2aCallContext
    ) -> a2a_pb2.TaskPushNotificationConfig:
        await self._begin(params, context)
        if not params.task_id:
            raise violations_error([FieldViolation("task_id", "is required")])
        config = to_stored_config(params, context)
        request = tasks_pb2.CreatePushConfigRequest(task_id=params.task_id, push_config=config)
        return to_a2a_config(
            params.task_id, (await self._call("CreatePushConfig", request, context.metadata)).push_config
        )

    async def get(
        self, params: a2a_pb2.GetTaskPushNotificationConfigRequest, context: A2aCallContext
    ) -> a2a_pb2.TaskPushNotificationConfig:
        """Return a configuration of a task; a request of 0.3 may omit its id."""
        # In 0.3 the id is optional, and without it the server returns the configuration that was set last.
        await self._begin(params, context, is_complete=parse_version(context.version) != V0_3)
        request = tasks_pb2.GetPushConfigRequest(task_id=params.task_id, id=params.id)
        return to_a2a_config(params.task_id, (await self._call("GetPushConfig", request, context.metadata)).push_config)

    async def list(
        self, params: a2a_pb2.ListTaskPushNotificationConfigsRequest, context: A2aCallContext
    ) -> a2a_pb2.ListTaskPushNotificationConfigsResponse:
        await self._begin(params, context)
        request = tasks_pb2.ListPushConfigsRequest(
            task_id=params.task_id, page_size=params.page_size, page_token=params.page_token
        )
        page = await self._call("ListPushConfigs", request, context.metadata)
        return a2a_pb2.ListTaskPushNotificationConfigsResponse(
            configs=[to_a2a_config(params.task_id, each) for each in page.push_configs],
            next_page_token=page.next_page_token,
        )

    async def delete(self, params: a2a_pb2.DeleteTaskPushNotificationConfigRequest, context: A2aCallContext) -> None:
        await self._begin(params, context)
        request = tasks_pb2.DeletePushConfigRequest(task_id=params.task_id, id=params.id)
        await self._call("DeletePushConfig", request, context.metadata)

    async def _begin(self, params: Message, context: A2aCallContext, *, is_complete: bool = True) -> None:
        """Raise A2AError if a call may not be made, or if it is to be complete and lacks required fields."""
        await self._check_access(context, params)
        self._required_service()
        if is_complete:
            check_required_fields(params)

    async def _call(self, rpc: str, request: Message, metadata: Metadata, place: str = "") -> Any:
        """Call an rpc of the server; the request of the caller has the configuration at `place`.

        Raises TaskNotFoundError, PushNotificationNotSupportedError, InvalidParamsError and UpstreamError.
        """
        try:
            return await invoke_rpc(getattr(self._required_service(), rpc), request, metadata, self._timeout)
        except CstpError as failure:
            raise push_error(failure, place) from failure

    def _required_service(self) -> TaskServiceStub:
        if self._service is None:
            raise PushNotificationNotSupportedError
        return self._service


def to_stored_config(config: a2a_pb2.TaskPushNotificationConfig, context: A2aCallContext) -> tasks_pb2.PushConfig:
    """Convert a configuration for the server; its notifications use the A2A version of the request."""
    return tasks_pb2.PushConfig(
        id=config.id,
        url=config.url,
        token=config.token,
        scheme=config.authentication.scheme,
        credentials=config.authentication.credentials,
        format=PUSH_FORMATS[parse_version(context.version)],
    )


def with_config_id(config: tasks_pb2.PushConfig, config_id: str) -> tasks_pb2.PushConfig:
    named = tasks_pb2.PushConfig()
    named.CopyFrom(config)
    named.id = config_id
    return named


def to_a2a_config(task_id: str, kept: tasks_pb2.PushConfig) -> a2a_pb2.TaskPushNotificationConfig:
    shown = a2a_pb2.TaskPushNotificationConfig(task_id=task_id, id=kept.id, url=kept.url, token=kept.token)
    # Assigning even empty text would make `authentication` present.
    if kept.scheme:
        shown.authentication.scheme = kept.scheme
        shown.authentication.credentials = kept.credentials
    return shown
