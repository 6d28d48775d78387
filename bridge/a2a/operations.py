"""The operations of A2A 1.0 over JSON and over gRPC: request types, handlers and results."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, TypeVar

from a2a.types import a2a_pb2
from a2a.utils.errors import InvalidParamsError, TaskNotFoundError
from a2a.utils.proto_utils import to_stream_response
from google.protobuf import empty_pb2
from google.protobuf.message import Message

from bridge.a2a import proto_json
from bridge.a2a.call_context import A2aCallContext
from bridge.a2a.proto_json import to_json
from bridge.a2a.request_handler import A2aRequestHandler
from bridge.a2a.task_store import TaskEvent

RequestT = TypeVar("RequestT", bound=Message)

UnaryOperation = Callable[[object, A2aCallContext], Awaitable[object]]
"""Takes params and returns a JSON value. Raises A2AError."""
StreamingOperation = Callable[[object, A2aCallContext], AsyncGenerator[object, None]]
"""Takes params and yields JSON values. Raises A2AError."""


@dataclass(frozen=True, slots=True)
class OperationTable:
    """The operations of one version by name: those with a single result, and those that stream."""

    answers: Mapping[str, UnaryOperation]
    streams: Mapping[str, StreamingOperation]


def build_json_operations(handler: A2aRequestHandler) -> OperationTable:
    """Return the operations of A2A 1.0 by name."""
    return OperationTable(
        answers={
            "SendMessage": unary_json_operation(a2a_pb2.SendMessageRequest, handler.on_message_send, render_reply),
            "GetTask": unary_json_operation(a2a_pb2.GetTaskRequest, handler.on_get_task),
            "ListTasks": unary_json_operation(a2a_pb2.ListTasksRequest, handler.on_list_tasks, render_page),
            "CancelTask": unary_json_operation(a2a_pb2.CancelTaskRequest, handler.on_cancel_task),
            "CreateTaskPushNotificationConfig": unary_json_operation(
                a2a_pb2.TaskPushNotificationConfig, handler.on_create_task_push_notification_config
            ),
            "GetTaskPushNotificationConfig": unary_json_operation(
                a2a_pb2.GetTaskPushNotificationConfigRequest, handler.on_get_task_push_notification_config
            ),
            "ListTaskPushNotificationConfigs": unary_json_operation(
                a2a_pb2.ListTaskPushNotificationConfigsRequest, handler.on_list_task_push_notification_configs
            ),
            "DeleteTaskPushNotificationConfig": unary_json_operation(
                a2a_pb2.DeleteTaskPushNotificationConfigRequest,
                handler.on_delete_task_push_notification_config,
                lambda _request, _nothing: {},
            ),
            "GetExtendedAgentCard": unary_json_operation(
                a2a_pb2.GetExtendedAgentCardRequest, handler.on_get_extended_agent_card
            ),
        },
        streams={
            "SendStreamingMessage": streaming_json_operation(
                a2a_pb2.SendMessageRequest, handler.on_message_send_stream
            ),
            "SubscribeToTask": streaming_json_operation(a2a_pb2.SubscribeToTaskRequest, handler.on_subscribe_to_task),
        },
    )


def render_message(_request: Message, result: Message | None) -> object:
    """Return a message as ProtoJSON. Raises TaskNotFoundError if it is None."""
    if result is None:
        raise TaskNotFoundError
    return to_json(result)


def render_reply(_request: a2a_pb2.SendMessageRequest, result: a2a_pb2.Task | a2a_pb2.Message) -> object:
    """Return the JSON of the reply to a message."""
    return {"task" if isinstance(result, a2a_pb2.Task) else "message": to_json(result)}


def render_page(request: a2a_pb2.ListTasksRequest, page: a2a_pb2.ListTasksResponse) -> object:
    """Return a page of tasks, whose own members are all required; artifacts are included only on request."""
    tasks = [to_json(task) for task in page.tasks]
    for task in tasks:
        if not request.include_artifacts:
            task.pop("artifacts", None)
        else:
            task.setdefault("artifacts", [])
    return {
        "tasks": tasks,
        "nextPageToken": page.next_page_token,
        "pageSize": page.page_size,
        "totalSize": page.total_size,
    }


def unary_json_operation(
    kind: type[RequestT],
    perform: Callable[[RequestT, A2aCallContext], Awaitable[Any]],
    show: Callable[[RequestT, Any], object] = render_message,
) -> UnaryOperation:
    """Build an operation with a single result."""

    async def answer(given: object, context: A2aCallContext) -> object:
        request = proto_json.parse_request(given, kind)
        try:
            return show(request, await perform(request, context))
        except InvalidParamsError as error:
            raise proto_json.with_json_names(error, kind) from error

    return answer


def streaming_json_operation(
    kind: type[RequestT], perform: Callable[[RequestT, A2aCallContext], AsyncGenerator[TaskEvent, None]]
) -> StreamingOperation:
    """Build an operation with a stream of results."""

    async def stream(given: object, context: A2aCallContext) -> AsyncGenerator[object, None]:
        request = proto_json.parse_request(given, kind)
        try:
            async with aclosing(perform(request, context)) as events:
                async for event in events:
                    yield to_json(to_stream_response(event))
        except InvalidParamsError as error:
            raise proto_json.with_json_names(error, kind) from error

    return stream


UnaryGrpcOperation = Callable[[Any, A2aCallContext], Awaitable[Message]]
"""Takes the request of an rpc and returns its answer. Raises A2AError."""
StreamingGrpcOperation = Callable[[Any, A2aCallContext], AsyncGenerator[Message, None]]
"""Takes the request of an rpc and yields its answers. Raises A2AError."""


@dataclass(frozen=True, slots=True)
class GrpcOperationTable:
    """The operations of one version by rpc name: those with a single response, and those that stream."""

    answers: Mapping[str, UnaryGrpcOperation]
    streams: Mapping[str, StreamingGrpcOperation]


def build_grpc_operations(handler: A2aRequestHandler) -> GrpcOperationTable:
    """Return the operations of A2A 1.0 by rpc name."""

    async def send(request: a2a_pb2.SendMessageRequest, context: A2aCallContext) -> a2a_pb2.SendMessageResponse:
        return a2a_pb2.SendMessageResponse(task=await handler.on_message_send(request, context))

    async def delete_config(
        request: a2a_pb2.DeleteTaskPushNotificationConfigRequest, context: A2aCallContext
    ) -> empty_pb2.Empty:
        await handler.on_delete_task_push_notification_config(request, context)
        return empty_pb2.Empty()

    return GrpcOperationTable(
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
            "SendStreamingMessage": streaming_grpc_operation(handler.on_message_send_stream),
            "SubscribeToTask": streaming_grpc_operation(handler.on_subscribe_to_task),
        },
    )


def streaming_grpc_operation(
    perform: Callable[[Any, A2aCallContext], AsyncGenerator[TaskEvent, None]],
) -> StreamingGrpcOperation:
    """Build an operation with a stream of responses."""

    async def stream(request: Message, context: A2aCallContext) -> AsyncGenerator[Message, None]:
        async with aclosing(perform(request, context)) as events:
            async for event in events:
                yield to_stream_response(event)

    return stream
