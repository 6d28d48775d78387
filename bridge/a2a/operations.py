"""The operations of A2A 1.0 over JSON: what each takes, who performs it, how its results look."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, TypeVar

from a2a.types import a2a_pb2
from a2a.utils.errors import InvalidParamsError, TaskNotFoundError
from a2a.utils.proto_utils import to_stream_response
from google.protobuf.message import Message

from bridge.a2a import params
from bridge.a2a.context import CallContext
from bridge.a2a.conversations import Conversations
from bridge.a2a.proto_json import to_json
from bridge.a2a.tasks import Event

RequestT = TypeVar("RequestT", bound=Message)

Answer = Callable[[object, CallContext], Awaitable[object]]
"""Takes params and returns a JSON value. Raises A2AError."""
Stream = Callable[[object, CallContext], AsyncGenerator[object, None]]
"""Takes params and yields JSON values. Raises A2AError."""


@dataclass(frozen=True, slots=True)
class Operations:
    """The operations of one version by their names: those that answer once, and those that stream."""

    answers: Mapping[str, Answer]
    streams: Mapping[str, Stream]


def operations(handler: Conversations) -> Operations:
    """Return the operations of A2A 1.0."""
    return Operations(
        answers={
            "SendMessage": unary(a2a_pb2.SendMessageRequest, handler.on_message_send, render_reply),
            "GetTask": unary(a2a_pb2.GetTaskRequest, handler.on_get_task),
            "ListTasks": unary(a2a_pb2.ListTasksRequest, handler.on_list_tasks, render_page),
            "CancelTask": unary(a2a_pb2.CancelTaskRequest, handler.on_cancel_task),
            "CreateTaskPushNotificationConfig": unary(
                a2a_pb2.TaskPushNotificationConfig, handler.on_create_task_push_notification_config
            ),
            "GetTaskPushNotificationConfig": unary(
                a2a_pb2.GetTaskPushNotificationConfigRequest, handler.on_get_task_push_notification_config
            ),
            "ListTaskPushNotificationConfigs": unary(
                a2a_pb2.ListTaskPushNotificationConfigsRequest, handler.on_list_task_push_notification_configs
            ),
            "DeleteTaskPushNotificationConfig": unary(
                a2a_pb2.DeleteTaskPushNotificationConfigRequest,
                handler.on_delete_task_push_notification_config,
                lambda _request, _nothing: {},
            ),
            "GetExtendedAgentCard": unary(a2a_pb2.GetExtendedAgentCardRequest, handler.on_get_extended_agent_card),
        },
        streams={
            "SendStreamingMessage": streaming(a2a_pb2.SendMessageRequest, handler.on_message_send_stream),
            "SubscribeToTask": streaming(a2a_pb2.SubscribeToTaskRequest, handler.on_subscribe_to_task),
        },
    )


def render(_request: Message, result: Message | None) -> object:
    """Return a message as ProtoJSON. Raises TaskNotFoundError where there is none."""
    if result is None:
        raise TaskNotFoundError
    return to_json(result)


def render_reply(_request: a2a_pb2.SendMessageRequest, result: a2a_pb2.Task | a2a_pb2.Message) -> object:
    """Return what a message was answered with."""
    return {"task" if isinstance(result, a2a_pb2.Task) else "message": to_json(result)}


def render_page(request: a2a_pb2.ListTasksRequest, page: a2a_pb2.ListTasksResponse) -> object:
    """Return a page of tasks, whose own members are all required; artifacts are there where they were asked for."""
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


def unary(
    kind: type[RequestT],
    perform: Callable[[RequestT, CallContext], Awaitable[Any]],
    show: Callable[[RequestT, Any], object] = render,
) -> Answer:
    """Return an operation that answers once."""

    async def answer(given: object, context: CallContext) -> object:
        request = params.read(given, kind)
        try:
            return show(request, await perform(request, context))
        except InvalidParamsError as error:
            raise params.named(error, kind) from error

    return answer


def streaming(kind: type[RequestT], perform: Callable[[RequestT, CallContext], AsyncGenerator[Event, None]]) -> Stream:
    """Return an operation that streams."""

    async def stream(given: object, context: CallContext) -> AsyncGenerator[object, None]:
        request = params.read(given, kind)
        try:
            async with aclosing(perform(request, context)) as events:
                async for event in events:
                    yield to_json(to_stream_response(event))
        except InvalidParamsError as error:
            raise params.named(error, kind) from error

    return stream
