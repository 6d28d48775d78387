"""The operations of A2A 1.0 by the rpcs of its service: on messages, as over gRPC, and on JSON."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final

from a2a.types import a2a_pb2
from a2a.utils.errors import InvalidParamsError
from a2a.utils.proto_utils import to_stream_response
from google.protobuf import empty_pb2, message_factory
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message import Message

from bridge.a2a.call_context import A2aCallContext
from bridge.a2a.errors import violations_error, with_json_names
from bridge.a2a.request_handler import A2aRequestHandler
from bridge.a2a.task_store import TaskEvent
from cstp_grpc.contract.json_codec import PROTO_JSON, CodecError, from_json, to_proto_json
from cstp_grpc.errors import FieldViolation

A2A_SERVICE: Final[ServiceDescriptor] = a2a_pb2.DESCRIPTOR.services_by_name["A2AService"]

UnaryMessageOperation = Callable[[Any, A2aCallContext], Awaitable[Message]]
"""Takes the request of an rpc and returns its response. Raises A2AError."""
StreamingMessageOperation = Callable[[Any, A2aCallContext], AsyncGenerator[Message, None]]
"""Takes the request of an rpc and yields its responses. Raises A2AError."""
UnaryOperation = Callable[[object, A2aCallContext], Awaitable[object]]
"""Takes params and returns a JSON value. Raises A2AError."""
StreamingOperation = Callable[[object, A2aCallContext], AsyncGenerator[object, None]]
"""Takes params and yields JSON values. Raises A2AError."""


@dataclass(frozen=True, slots=True)
class MessageOperationTable:
    """The operations of one version on messages by rpc name: those with a single response, and those that stream."""

    answers: Mapping[str, UnaryMessageOperation]
    streams: Mapping[str, StreamingMessageOperation]


@dataclass(frozen=True, slots=True)
class OperationTable:
    """The operations of one version on JSON by name: those with a single result, and those that stream."""

    answers: Mapping[str, UnaryOperation]
    streams: Mapping[str, StreamingOperation]


def build_operations(handler: A2aRequestHandler) -> MessageOperationTable:
    """Return the operations of A2A 1.0 on messages, by rpc name."""
    push_configs = handler.push_configs

    async def send(request: a2a_pb2.SendMessageRequest, context: A2aCallContext) -> a2a_pb2.SendMessageResponse:
        return a2a_pb2.SendMessageResponse(task=await handler.on_message_send(request, context))

    async def delete_config(
        request: a2a_pb2.DeleteTaskPushNotificationConfigRequest, context: A2aCallContext
    ) -> empty_pb2.Empty:
        await push_configs.delete(request, context)
        return empty_pb2.Empty()

    return MessageOperationTable(
        answers={
            "SendMessage": send,
            "GetTask": handler.on_get_task,
            "ListTasks": handler.on_list_tasks,
            "CancelTask": handler.on_cancel_task,
            "CreateTaskPushNotificationConfig": push_configs.create,
            "GetTaskPushNotificationConfig": push_configs.get,
            "ListTaskPushNotificationConfigs": push_configs.list,
            "DeleteTaskPushNotificationConfig": delete_config,
            "GetExtendedAgentCard": handler.on_get_extended_agent_card,
        },
        streams={
            "SendStreamingMessage": streaming_operation(handler.on_message_send_stream),
            "SubscribeToTask": streaming_operation(handler.on_subscribe_to_task),
        },
    )


def streaming_operation(
    perform: Callable[[Any, A2aCallContext], AsyncGenerator[TaskEvent, None]],
) -> StreamingMessageOperation:
    """Build an operation with a stream of responses."""

    async def stream(request: Message, context: A2aCallContext) -> AsyncGenerator[Message, None]:
        async with aclosing(perform(request, context)) as events:
            async for event in events:
                yield to_stream_response(event)

    return stream


def build_json_operations(handler: A2aRequestHandler) -> OperationTable:
    """Return the operations of A2A 1.0 on JSON, by rpc name; the types of their requests are those of the rpcs."""
    known = build_operations(handler)
    kinds = {rpc.name: message_factory.GetMessageClass(rpc.input_type) for rpc in A2A_SERVICE.methods}
    return OperationTable(
        answers={
            name: unary_json_operation(
                kinds[name], perform, render_task_page if name == "ListTasks" else render_message
            )
            for name, perform in known.answers.items()
        },
        streams={name: streaming_json_operation(kinds[name], perform) for name, perform in known.streams.items()},
    )


def render_message(_request: Message, response: Message) -> object:
    """Return a response as ProtoJSON."""
    return to_proto_json(response)


def render_task_page(request: a2a_pb2.ListTasksRequest, page: a2a_pb2.ListTasksResponse) -> object:
    """Return a page of tasks, whose own members are all required; artifacts are included only on request."""
    tasks = [to_proto_json(task) for task in page.tasks]
    for task in tasks:
        # A2A has both an absent list and an empty one, and protobuf only the latter: absent means that it was not asked
        # for.
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


def params_error(error: CodecError | InvalidParamsError, kind: type[Message]) -> InvalidParamsError:
    """Return the error for params of a request type, with the fields named as in JSON."""
    if isinstance(error, InvalidParamsError):
        return with_json_names(error, kind)
    # Only the params themselves have no path.
    return violations_error(
        [each if each.field else FieldViolation("", f"params {each.description}") for each in error.violations]
    )


def unary_json_operation(
    kind: type[Message], perform: UnaryMessageOperation, render: Callable[[Any, Any], object]
) -> UnaryOperation:
    """Build an operation with a single result."""

    async def answer(given: object, context: A2aCallContext) -> object:
        try:
            request = from_json(given, kind, PROTO_JSON)
            return render(request, await perform(request, context))
        except (CodecError, InvalidParamsError) as error:
            raise params_error(error, kind) from error

    return answer


def streaming_json_operation(kind: type[Message], perform: StreamingMessageOperation) -> StreamingOperation:
    """Build an operation with a stream of results."""

    async def stream(given: object, context: A2aCallContext) -> AsyncGenerator[object, None]:
        try:
            request = from_json(given, kind, PROTO_JSON)
            # Closed when the client leaves: the generators below end what they follow, up to the polling of the stored
            # task.
            async with aclosing(perform(request, context)) as responses:
                async for response in responses:
                    yield to_proto_json(response)
        except (CodecError, InvalidParamsError) as error:
            raise params_error(error, kind) from error

    return stream
