"""The operations of A2A 0.3 over gRPC; imported at the first call, see `load_old_generation`."""

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

from bridge.a2a import compat
from bridge.a2a.context import CallContext
from bridge.a2a.conversations import Conversations
from bridge.a2a.errors import invalid_params
from bridge.a2a.grpc_operations import GrpcOperations, MessageAnswer, MessageStream
from bridge.a2a.params import MAX_ITEMS, TOO_MANY
from bridge.a2a.tasks import Event

RequestT = TypeVar("RequestT", bound=Message)
CoreT = TypeVar("CoreT", bound=Message)
ResultT = TypeVar("ResultT")

NO_ID: Final = 0
"""The SDK's requests want an id, which gRPC has not."""

TASK: Final = (re.compile(r"tasks/[^/]+"), "tasks/{id}")
CONFIG: Final = (re.compile(r"tasks/[^/]+/pushNotificationConfigs/[^/]+"), "tasks/{id}/pushNotificationConfigs/{id}")

NAMES: Final = {
    a2a_v0_3_pb2.GetTaskRequest: ("name", TASK),
    a2a_v0_3_pb2.CancelTaskRequest: ("name", TASK),
    a2a_v0_3_pb2.TaskSubscriptionRequest: ("name", TASK),
    a2a_v0_3_pb2.CreateTaskPushNotificationConfigRequest: ("parent", TASK),
    a2a_v0_3_pb2.ListTaskPushNotificationConfigRequest: ("parent", TASK),
    a2a_v0_3_pb2.GetTaskPushNotificationConfigRequest: ("name", CONFIG),
    a2a_v0_3_pb2.DeleteTaskPushNotificationConfigRequest: ("name", CONFIG),
}
"""By request: the field that names a resource, and the form of that name."""


def operations(handler: Conversations) -> GrpcOperations:
    """Return the operations by the names of their rpcs."""
    return GrpcOperations(
        answers={
            "SendMessage": unary(
                read_message,
                handler.on_message_send,
                lambda task: a2a_v0_3_pb2.SendMessageResponse(task=old_task(task)),
            ),
            "GetTask": unary(read_task_query, handler.on_get_task, old_task),
            "CancelTask": unary(read_cancellation, handler.on_cancel_task, old_task),
            "CreateTaskPushNotificationConfig": unary(
                read_new_config, handler.on_create_task_push_notification_config, old_config
            ),
            "GetTaskPushNotificationConfig": unary(
                read_config_query, handler.on_get_task_push_notification_config, old_config
            ),
            "ListTaskPushNotificationConfig": unary(
                read_config_listing, handler.on_list_task_push_notification_configs, old_configs
            ),
            "DeleteTaskPushNotificationConfig": unary(
                read_config_removal,
                handler.on_delete_task_push_notification_config,
                lambda _nothing: empty_pb2.Empty(),
            ),
            "GetAgentCard": unary(
                lambda _request: a2a_pb2.GetExtendedAgentCardRequest(), handler.on_get_extended_agent_card, old_card
            ),
        },
        streams={
            "SendStreamingMessage": streaming(read_message, handler.on_message_send_stream),
            "TaskSubscription": streaming(read_subscription, handler.on_subscribe_to_task),
        },
    )


def unary(
    read: Callable[[Any], CoreT],
    perform: Callable[[CoreT, CallContext], Awaitable[ResultT]],
    write: Callable[[ResultT], Message],
) -> MessageAnswer:
    """Return an operation that answers once."""

    async def answer(request: Message, context: CallContext) -> Message:
        check(request)
        return write(await perform(read(request), context))

    return answer


def streaming(
    read: Callable[[Any], CoreT], perform: Callable[[CoreT, CallContext], AsyncGenerator[Event, None]]
) -> MessageStream:
    """Return an operation that streams."""

    async def stream(request: Message, context: CallContext) -> AsyncGenerator[Message, None]:
        check(request)
        async with aclosing(perform(read(request), context)) as events:
            async for event in events:
                yield ToProto.stream_response(compat.old_event(event))

    return stream


def read_message(request: a2a_v0_3_pb2.SendMessageRequest) -> a2a_pb2.SendMessageRequest:
    """Return a message that was sent as one of 1.0. Raises InvalidParamsError."""
    try:
        params = FromProto.message_send_params(request)
        return conversions.to_core_send_message_request(types.SendMessageRequest(id=NO_ID, params=params))
    except Exception as error:
        # What the SDK raises for such messages is of no common kind.
        raise invalid_params("The message holds values that cannot be understood") from error


def read_task_query(request: a2a_v0_3_pb2.GetTaskRequest) -> a2a_pb2.GetTaskRequest:
    """Return as a request of 1.0 which task to get."""
    params = FromProto.task_query_params(request)
    return conversions.to_core_get_task_request(types.GetTaskRequest(id=NO_ID, params=params))


def read_cancellation(request: a2a_v0_3_pb2.CancelTaskRequest) -> a2a_pb2.CancelTaskRequest:
    """Return as a request of 1.0 which task to cancel."""
    params = FromProto.task_id_params(request)
    return conversions.to_core_cancel_task_request(types.CancelTaskRequest(id=NO_ID, params=params))


def read_subscription(request: a2a_v0_3_pb2.TaskSubscriptionRequest) -> a2a_pb2.SubscribeToTaskRequest:
    """Return as a request of 1.0 which task to follow."""
    params = FromProto.task_id_params(request)
    return conversions.to_core_subscribe_to_task_request(types.TaskResubscriptionRequest(id=NO_ID, params=params))


def read_new_config(
    request: a2a_v0_3_pb2.CreateTaskPushNotificationConfigRequest,
) -> a2a_pb2.TaskPushNotificationConfig:
    """Return a configuration to keep as one of 1.0."""
    # The SDK does not read the id of a configuration from where the rpc has it.
    config = request.config.push_notification_config
    config.id = config.id or request.config_id
    params = FromProto.task_push_notification_config_request(request)
    return conversions.to_core_create_task_push_notification_config_request(
        types.SetTaskPushNotificationConfigRequest(id=NO_ID, params=params)
    )


def read_config_query(
    request: a2a_v0_3_pb2.GetTaskPushNotificationConfigRequest,
) -> a2a_pb2.GetTaskPushNotificationConfigRequest:
    """Return as a request of 1.0 which configuration to get."""
    task_id, config_id = read_config_name(request.name)
    return a2a_pb2.GetTaskPushNotificationConfigRequest(task_id=task_id, id=config_id)


def read_config_listing(
    request: a2a_v0_3_pb2.ListTaskPushNotificationConfigRequest,
) -> a2a_pb2.ListTaskPushNotificationConfigsRequest:
    """Return as a request of 1.0 of which task to list the configurations."""
    match = TASK_NAME_MATCH.match(request.parent)
    assert match is not None, "names are checked before they are read"
    return a2a_pb2.ListTaskPushNotificationConfigsRequest(task_id=match[1])


def read_config_removal(
    request: a2a_v0_3_pb2.DeleteTaskPushNotificationConfigRequest,
) -> a2a_pb2.DeleteTaskPushNotificationConfigRequest:
    """Return as a request of 1.0 which configuration to remove."""
    task_id, config_id = read_config_name(request.name)
    return a2a_pb2.DeleteTaskPushNotificationConfigRequest(task_id=task_id, id=config_id)


def read_config_name(name: str) -> tuple[str, str]:
    """Return the ids of the task and of the configuration in the name of a configuration."""
    match = TASK_PUSH_CONFIG_NAME_MATCH.match(name)
    assert match is not None, "names are checked before they are read"
    return match[1], match[2]


def old_task(task: a2a_pb2.Task) -> a2a_v0_3_pb2.Task:
    """Return a task as one of 0.3."""
    return ToProto.task(conversions.to_compat_task(task))


def old_config(config: a2a_pb2.TaskPushNotificationConfig) -> a2a_v0_3_pb2.TaskPushNotificationConfig:
    """Return a configuration as one of 0.3."""
    return ToProto.task_push_notification_config(conversions.to_compat_task_push_notification_config(config))


def old_configs(
    found: a2a_pb2.ListTaskPushNotificationConfigsResponse,
) -> a2a_v0_3_pb2.ListTaskPushNotificationConfigResponse:
    """Return the configurations of a task as 0.3 has them."""
    return a2a_v0_3_pb2.ListTaskPushNotificationConfigResponse(configs=map(old_config, found.configs))


def old_card(card: a2a_pb2.AgentCard) -> a2a_v0_3_pb2.AgentCard:
    """Return an agent card as one of 0.3."""
    return ToProto.agent_card(conversions.to_compat_agent_card(card))


def check(request: Message) -> None:
    """Let requests that can be understood pass. Raises InvalidParamsError and ContentTypeNotSupportedError.

    The SDK ignores what follows a name that it knows.
    """
    if named := NAMES.get(type(request)):
        field, (form, shown) = named
        if not form.fullmatch(getattr(request, field)):
            description = f"must be of the form {shown}"
            raise invalid_params(f"{field}: {description}", (field, description))
    if isinstance(request, a2a_v0_3_pb2.SendMessageRequest):
        check_message(request)


def check_message(request: a2a_v0_3_pb2.SendMessageRequest) -> None:
    """Let a message pass whose parts may be translated. Raises as `check` does."""
    if len(request.request.content) > MAX_ITEMS:
        raise invalid_params(f"message.content: {TOO_MANY}", ("message.content", TOO_MANY))
    for number, part in enumerate(request.request.content):
        kind = part.WhichOneof("part")
        if kind == "file":
            raise ContentTypeNotSupportedError(f"message.content[{number}]: files are not taken, only text and data")
        if kind is None:
            field, description = f"message.content[{number}]", "must hold text or data"
            raise invalid_params(f"{field}: {description}", (field, description))
