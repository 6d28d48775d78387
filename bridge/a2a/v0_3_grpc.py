"""The operations of A2A 0.3 over gRPC; imported at the first call, see `load_sdk_v0_3`."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, Final, TypeVar

from a2a.compat.v0_3 import a2a_v0_3_pb2, conversions, types
from a2a.compat.v0_3.proto_utils import TASK_NAME_MATCH, TASK_PUSH_CONFIG_NAME_MATCH, FromProto, ToProto
from a2a.types import a2a_pb2
from a2a.utils.errors import ContentTypeNotSupportedError
from google.protobuf import empty_pb2
from google.protobuf.message import Message

from bridge.a2a import v0_3_json
from bridge.a2a.call_context import A2aCallContext
from bridge.a2a.errors import invalid_params, violations_error
from bridge.a2a.message_parsing import MAX_ITEMS, TOO_MANY
from bridge.a2a.request_handler import (
    A2aRequestHandler,
    MessageOperationTable,
    StreamingMessageOperation,
    UnaryMessageOperation,
)
from bridge.a2a.task_store import TaskEvent
from cstp_grpc.contract.errors import FieldViolation

RequestT = TypeVar("RequestT", bound=Message)
CoreT = TypeVar("CoreT", bound=Message)
ResultT = TypeVar("ResultT")

NO_ID: Final = 0
"""The SDK's requests want an id, which gRPC has not."""

TASK_NAME_FORM: Final = (re.compile(r"tasks/[^/]+"), "tasks/{id}")
CONFIG_NAME_FORM: Final = (
    re.compile(r"tasks/[^/]+/pushNotificationConfigs/[^/]+"),
    "tasks/{id}/pushNotificationConfigs/{id}",
)

NAMED_RESOURCES: Final = {
    a2a_v0_3_pb2.GetTaskRequest: ("name", TASK_NAME_FORM),
    a2a_v0_3_pb2.CancelTaskRequest: ("name", TASK_NAME_FORM),
    a2a_v0_3_pb2.TaskSubscriptionRequest: ("name", TASK_NAME_FORM),
    a2a_v0_3_pb2.CreateTaskPushNotificationConfigRequest: ("parent", TASK_NAME_FORM),
    a2a_v0_3_pb2.ListTaskPushNotificationConfigRequest: ("parent", TASK_NAME_FORM),
    a2a_v0_3_pb2.GetTaskPushNotificationConfigRequest: ("name", CONFIG_NAME_FORM),
    a2a_v0_3_pb2.DeleteTaskPushNotificationConfigRequest: ("name", CONFIG_NAME_FORM),
}
"""By request: the field that names a resource, and the form of that name."""


def build_grpc_operations_v0_3(handler: A2aRequestHandler) -> MessageOperationTable:
    """Return the operations of A2A 0.3 by rpc name."""
    return MessageOperationTable(
        answers={
            "SendMessage": unary_operation(
                to_send_message_request,
                handler.on_message_send,
                lambda task: a2a_v0_3_pb2.SendMessageResponse(task=to_task_v0_3(task)),
            ),
            "GetTask": unary_operation(to_get_task_request, handler.on_get_task, to_task_v0_3),
            "CancelTask": unary_operation(to_cancel_task_request, handler.on_cancel_task, to_task_v0_3),
            "CreateTaskPushNotificationConfig": unary_operation(
                to_push_config, handler.push_configs.create, to_push_config_v0_3
            ),
            "GetTaskPushNotificationConfig": unary_operation(
                to_get_config_request, handler.push_configs.get, to_push_config_v0_3
            ),
            "ListTaskPushNotificationConfig": unary_operation(
                to_list_configs_request, handler.push_configs.list, to_push_configs_v0_3
            ),
            "DeleteTaskPushNotificationConfig": unary_operation(
                to_delete_config_request,
                handler.push_configs.delete,
                lambda _nothing: empty_pb2.Empty(),
            ),
            "GetAgentCard": unary_operation(
                lambda _request: a2a_pb2.GetExtendedAgentCardRequest(), handler.on_get_extended_agent_card, to_card_v0_3
            ),
        },
        streams={
            "SendStreamingMessage": streaming_operation(to_send_message_request, handler.on_message_send_stream),
            "TaskSubscription": streaming_operation(to_subscribe_request, handler.on_subscribe_to_task),
        },
    )


def unary_operation(
    read: Callable[[Any], CoreT],
    perform: Callable[[CoreT, A2aCallContext], Awaitable[ResultT]],
    write: Callable[[ResultT], Message],
) -> UnaryMessageOperation:
    """Build an operation with a single response."""

    async def answer(request: Message, context: A2aCallContext) -> Message:
        check_request(request)
        return write(await perform(read(request), context))

    return answer


def streaming_operation(
    read: Callable[[Any], CoreT], perform: Callable[[CoreT, A2aCallContext], AsyncGenerator[TaskEvent, None]]
) -> StreamingMessageOperation:
    async def stream(request: Message, context: A2aCallContext) -> AsyncGenerator[Message, None]:
        check_request(request)
        async with aclosing(perform(read(request), context)) as events:
            async for event in events:
                yield ToProto.stream_response(v0_3_json.to_event_v0_3(event))

    return stream


def to_send_message_request(request: a2a_v0_3_pb2.SendMessageRequest) -> a2a_pb2.SendMessageRequest:
    """Convert a sent message to a request of A2A 1.0. Raises InvalidParamsError."""
    try:
        params = FromProto.message_send_params(request)
        return conversions.to_core_send_message_request(types.SendMessageRequest(id=NO_ID, params=params))
    except Exception as error:
        # What the SDK raises for such messages is of no common kind.
        raise invalid_params("The message holds values that cannot be understood") from error


def to_get_task_request(request: a2a_v0_3_pb2.GetTaskRequest) -> a2a_pb2.GetTaskRequest:
    params = FromProto.task_query_params(request)
    return conversions.to_core_get_task_request(types.GetTaskRequest(id=NO_ID, params=params))


def to_cancel_task_request(request: a2a_v0_3_pb2.CancelTaskRequest) -> a2a_pb2.CancelTaskRequest:
    params = FromProto.task_id_params(request)
    return conversions.to_core_cancel_task_request(types.CancelTaskRequest(id=NO_ID, params=params))


def to_subscribe_request(request: a2a_v0_3_pb2.TaskSubscriptionRequest) -> a2a_pb2.SubscribeToTaskRequest:
    params = FromProto.task_id_params(request)
    return conversions.to_core_subscribe_to_task_request(types.TaskResubscriptionRequest(id=NO_ID, params=params))


def to_push_config(
    request: a2a_v0_3_pb2.CreateTaskPushNotificationConfigRequest,
) -> a2a_pb2.TaskPushNotificationConfig:
    """Convert a new push configuration to A2A 1.0."""
    # The SDK does not read the id of a configuration from where the rpc has it.
    config = request.config.push_notification_config
    config.id = config.id or request.config_id
    params = FromProto.task_push_notification_config_request(request)
    return conversions.to_core_create_task_push_notification_config_request(
        types.SetTaskPushNotificationConfigRequest(id=NO_ID, params=params)
    )


def to_get_config_request(
    request: a2a_v0_3_pb2.GetTaskPushNotificationConfigRequest,
) -> a2a_pb2.GetTaskPushNotificationConfigRequest:
    """Convert a request for a push configuration to A2A 1.0."""
    task_id, config_id = parse_config_name(request.name)
    return a2a_pb2.GetTaskPushNotificationConfigRequest(task_id=task_id, id=config_id)


def to_list_configs_request(
    request: a2a_v0_3_pb2.ListTaskPushNotificationConfigRequest,
) -> a2a_pb2.ListTaskPushNotificationConfigsRequest:
    """Convert a listing of push configurations to A2A 1.0."""
    match = TASK_NAME_MATCH.match(request.parent)
    assert match is not None, "names are checked before they are read"
    return a2a_pb2.ListTaskPushNotificationConfigsRequest(task_id=match[1])


def to_delete_config_request(
    request: a2a_v0_3_pb2.DeleteTaskPushNotificationConfigRequest,
) -> a2a_pb2.DeleteTaskPushNotificationConfigRequest:
    """Convert the removal of a push configuration to A2A 1.0."""
    task_id, config_id = parse_config_name(request.name)
    return a2a_pb2.DeleteTaskPushNotificationConfigRequest(task_id=task_id, id=config_id)


def parse_config_name(name: str) -> tuple[str, str]:
    """Parse the ids of task and configuration in a resource name."""
    match = TASK_PUSH_CONFIG_NAME_MATCH.match(name)
    assert match is not None, "names are checked before they are read"
    return match[1], match[2]


def to_task_v0_3(task: a2a_pb2.Task) -> a2a_v0_3_pb2.Task:
    return ToProto.task(conversions.to_compat_task(task))


def to_push_config_v0_3(config: a2a_pb2.TaskPushNotificationConfig) -> a2a_v0_3_pb2.TaskPushNotificationConfig:
    """Convert a push configuration to A2A 0.3."""
    return ToProto.task_push_notification_config(conversions.to_compat_task_push_notification_config(config))


def to_push_configs_v0_3(
    found: a2a_pb2.ListTaskPushNotificationConfigsResponse,
) -> a2a_v0_3_pb2.ListTaskPushNotificationConfigResponse:
    """Convert a list of push configurations to A2A 0.3."""
    return a2a_v0_3_pb2.ListTaskPushNotificationConfigResponse(configs=map(to_push_config_v0_3, found.configs))


def to_card_v0_3(card: a2a_pb2.AgentCard) -> a2a_v0_3_pb2.AgentCard:
    return ToProto.agent_card(conversions.to_compat_agent_card(card))


def check_request(request: Message) -> None:
    """Raise InvalidParamsError or ContentTypeNotSupportedError if a request cannot be converted.

    The SDK ignores what follows a valid resource name.
    """
    if named := NAMED_RESOURCES.get(type(request)):
        field, (form, shown) = named
        if not form.fullmatch(getattr(request, field)):
            raise violations_error([FieldViolation(field, f"must be of the form {shown}")])
    if isinstance(request, a2a_v0_3_pb2.SendMessageRequest):
        check_message(request)


def check_message(request: a2a_v0_3_pb2.SendMessageRequest) -> None:
    """Raise as `check_request` does if the parts of a message cannot be converted."""
    if len(request.request.content) > MAX_ITEMS:
        raise violations_error([FieldViolation("message.content", TOO_MANY)])
    for number, part in enumerate(request.request.content):
        kind = part.WhichOneof("part")
        if kind == "file":
            raise ContentTypeNotSupportedError(f"message.content[{number}]: files are not taken, only text and data")
        if kind is None:
            raise violations_error([FieldViolation(f"message.content[{number}]", "must hold text or data")])
