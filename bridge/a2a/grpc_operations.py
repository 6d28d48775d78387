"""The operations of A2A 1.0 over gRPC."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from a2a.types import a2a_pb2
from a2a.utils.proto_utils import to_stream_response
from google.protobuf import empty_pb2
from google.protobuf.message import Message

from bridge.a2a.context import CallContext
from bridge.a2a.conversations import Conversations
from bridge.a2a.tasks import Event

MessageAnswer = Callable[[Any, CallContext], Awaitable[Message]]
"""Takes the request of an rpc and returns its answer. Raises A2AError."""
MessageStream = Callable[[Any, CallContext], AsyncGenerator[Message, None]]
"""Takes the request of an rpc and yields its answers. Raises A2AError."""


@dataclass(frozen=True, slots=True)
class GrpcOperations:
    """The operations of one version by the names of their rpcs: those that answer once, and those that stream."""

    answers: Mapping[str, MessageAnswer]
    streams: Mapping[str, MessageStream]


def operations(handler: Conversations) -> GrpcOperations:
    """Return the operations of A2A 1.0."""

    async def send(request: a2a_pb2.SendMessageRequest, context: CallContext) -> a2a_pb2.SendMessageResponse:
        return a2a_pb2.SendMessageResponse(task=await handler.on_message_send(request, context))

    async def delete_config(
        request: a2a_pb2.DeleteTaskPushNotificationConfigRequest, context: CallContext
    ) -> empty_pb2.Empty:
        await handler.on_delete_task_push_notification_config(request, context)
        return empty_pb2.Empty()

    return GrpcOperations(
        answers={
            "SendMessage": send,
            "GetTask": handler.on_get_task,
            "ListTasks": handler.on_list_tasks,
            "CancelTask": handler.on_cancel_task,
            "CreateTaskPushNotificationConfig": handler.on_create_task_push_notification_config,
            "GetTaskPushNotificationConfig": handler.on_get_task_push_notification_config,
            "ListTaskPushNotificationConfigs": handler.on_list_task_push_notification_configs,
            "DeleteTaskPushNotificationConfig": delete_config,
            "GetExtendedAgentCard": handler.on_get_extended_agent_card,
        },
        streams={
            "SendStreamingMessage": streaming(handler.on_message_send_stream),
            "SubscribeToTask": streaming(handler.on_subscribe_to_task),
        },
    )


def streaming(perform: Callable[[Any, CallContext], AsyncGenerator[Event, None]]) -> MessageStream:
    """Return an operation that streams."""

    async def stream(request: Message, context: CallContext) -> AsyncGenerator[Message, None]:
        async with aclosing(perform(request, context)) as events:
            async for event in events:
                yield to_stream_response(event)

    return stream
